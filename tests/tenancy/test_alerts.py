"""A trouble that lasts is told once and resolved once, by mail and web-hook, whatever comes and goes between."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import subprocess
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from base.errors import ServiceError
from base.sealing import unseal
from tenancy.models import Alert, Delivery, Membership, User, WebHook
from tenancy.services import alerts, hooks, outbox
from tenancy.services.alerts import Trouble, observe
from tests.billing.conftest import MovedClock
from tests.gateway.post import sent_mail
from tests.tenancy.receiver import receiver

pytestmark = [pytest.mark.django_db]
DOWN = Trouble("check:redis:", "check.redis", "critical", "redis", "Redis can't be reached.", "start it", "/operate/")


@pytest.fixture
def clock(monkeypatch):
    moved = MovedClock(monkeypatch)
    moved.set(timezone.now())
    return moved


@pytest.fixture
def rounds(clock):
    """`rounds(seen, …)` looks once a minute: whether the trouble is seen each time."""
    at = [timezone.now()]

    def look(*seen, trouble=DOWN):
        for one in seen:
            at[0] += timedelta(minutes=1)
            clock.set(at[0])
            observe("check", [trouble] if one else [])

    return look


@pytest.fixture
def operator(settings):
    settings.SLUICE_ALERT_MAIL = []
    return User.objects.create_superuser("operator@sluice.example")


def subjects():
    return [letter.subject for letter in sent_mail()]


def test_it_is_told_once_and_resolved_once(rounds, operator):
    rounds(True, True, True, True)
    assert subjects() == ["Needs you: redis"]
    rounds(False, False, False, False, False)
    assert subjects() == ["Needs you: redis", "Over: redis"]
    row = Alert.objects.get()
    assert row.told_at < row.resolved_at


def test_what_comes_and_goes_is_told_to_nobody(rounds, operator):
    rounds(True, False, False, False, False)
    assert subjects() == []
    assert not Alert.objects.exists()


def test_a_gap_of_one_round_is_no_end(rounds, operator):
    rounds(True, True, False, True, True, False, True)
    assert subjects() == ["Needs you: redis"]


def test_it_may_begin_anew(rounds, operator):
    rounds(True, True, False, False, False, False, True, True)
    assert subjects() == ["Needs you: redis", "Over: redis", "Needs you: redis"]


def test_one_that_becomes_critical_is_told_anew(rounds, operator):
    low = replace(DOWN, severity="warning", title="Credit is low")
    rounds(True, True, trouble=low)
    rounds(True, True, trouble=replace(low, severity="critical", title="Credit is used up"))
    rounds(True, trouble=low)
    assert subjects() == ["Needs you: Credit is low", "Needs you: Credit is used up"]


def test_sources_do_not_end_each_others_troubles(rounds, operator):
    rounds(True, True)
    observe("credit", [])
    assert Alert.objects.filter(resolved_at=None).count() == 1


def test_a_mail_says_what_to_do_and_where(rounds, operator, settings):
    settings.SLUICE_BASE_URL = "https://sluice.example"
    rounds(True, True)
    [letter] = sent_mail()
    assert letter.to == ["operator@sluice.example"]
    assert "Redis can't be reached." in letter.body
    assert "What to do: start it" in letter.body
    assert "https://sluice.example/operate/" in letter.body


def test_settings_say_which_operators_are_told(rounds, operator, settings):
    settings.SLUICE_ALERT_MAIL = ["pager@sluice.example"]
    rounds(True, True)
    assert [letter.to for letter in sent_mail()] == [["pager@sluice.example"]]


def test_a_tenants_trouble_goes_to_those_who_pay_and_to_no_other_tenant(acme, other, rounds, operator):
    for role in Membership.Role.values:
        user = User.objects.create_user(f"{role}-too@acme.example")
        Membership(tenant=acme.tenant, user=user, role=role).save(force_insert=True)
    theirs, _ = hooks.make_hook(tenant=other.tenant, url="https://other.example/hook")
    low = Trouble("check:low", "credit.low", "warning", "Credit is low", "3 left.", tenant=acme.tenant.id)
    rounds(True, True, trouble=low)
    told = {to for letter in sent_mail() for to in letter.to}
    assert {"owner-too@acme.example", "admin-too@acme.example", "billing-too@acme.example"} <= told
    assert "member-too@acme.example" not in told
    assert "operator@sluice.example" not in told
    assert not theirs.deliveries.exists()


def hook_at(url, **more):
    hook, secret = hooks.make_hook(tenant=more.get("tenant"), url=url)
    return hook, secret


def test_a_web_hook_is_told_by_a_signed_request(rounds, operator, settings):
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]
    with receiver(200) as there:
        _, secret = hook_at(there.url)
        rounds(True, True)
        assert hooks.send_due()
        assert not hooks.send_due()
    [(headers, body)] = there.got
    said = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body.decode()}".encode()
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{mac}"
    told = json.loads(body)
    assert told["type"] == "alert.raised"
    assert told["data"]["title"] == "redis"
    row = Delivery.objects.get()
    assert (row.state, row.status, str(row.id)) == ("sent", 200, headers["webhook-id"])


def test_what_fails_is_tried_again_under_the_same_id_until_it_is_given_up(clock, settings):
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]
    at = timezone.now()
    with receiver(500) as there:
        hook, _ = hook_at(there.url)
        row = hooks.send_test(hook)
        for wait in (*outbox.BACK_OFF, timedelta(days=1)):
            assert hooks.send_due()
            assert not hooks.send_due()
            at += wait + timedelta(seconds=1)
            clock.set(at)
        row.refresh_from_db()
        assert (row.state, row.status, row.error) == ("failed", 500, "It answered 500.")
        assert len({headers["webhook-id"] for headers, _ in there.got}) == 1
        assert len(there.got) == len(outbox.BACK_OFF) + 1
        there.status = 204
        hooks.replay(row)
        assert hooks.send_due()
    row.refresh_from_db()
    assert (row.state, row.status, row.attempts) == ("sent", 204, 1)


@pytest.mark.parametrize("status", [301, 302, 307])
def test_no_redirect_is_followed(settings, status):
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]
    with receiver(status, location="/elsewhere") as there:
        hook, _ = hook_at(there.url)
        hooks.send_test(hook)
        hooks.send_due()
    assert len(there.got) == 1
    assert Delivery.objects.get().error == f"It answered {status}."


def test_an_address_that_is_gone_is_left_alone(settings):
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]
    with receiver(410) as there:
        hook, _ = hook_at(there.url)
        hooks.send_test(hook)
        hooks.send_due()
    assert Delivery.objects.get().state == "failed"


def test_a_tenants_hook_is_no_way_into_the_operators_network(acme, settings):
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]
    with receiver(200) as there:
        hook, _ = hook_at(there.url, tenant=acme.tenant)
        hooks.send_test(hook)
        hooks.send_due()
    assert there.got == []
    assert Delivery.objects.get().error == "No public address answers for this name."


def test_an_operator_is_told_where_a_name_leads(settings):
    settings.SLUICE_REMOTE_NETWORKS = []
    with receiver(200) as there:
        hook, _ = hook_at(there.url)
        hooks.send_test(hook)
        hooks.send_due()
    assert there.got == []
    assert "127.0.0.1, where no web-hook may be" in Delivery.objects.get().error


def test_a_tenants_messages_keep_operators_from_hearing_nothing(acme, settings):
    """Operators' messages go first, and of tests one waits at a time."""
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]
    theirs, _ = hook_at("https://there.example/", tenant=acme.tenant)
    hooks.send_test(theirs)
    with pytest.raises(ServiceError, match="still on its way"):
        hooks.send_test(theirs)
    with receiver(200) as there:
        ours, _ = hook_at(there.url)
        hooks.send_test(ours)
        assert hooks.send_due()
    assert len(there.got) == 1


def self_signed(folder):
    """Return a file with a key and its own certificate for 127.0.0.1."""
    key, both = folder / "key.pem", folder / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(both)]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(key.read_text() + both.read_text())
    return both


@pytest.mark.parametrize("is_sealed", [False, True], ids=["http", "https"])
def test_a_receiver_that_is_slow_holds_nobody_for_long(monkeypatch, settings, tmp_path, is_sealed):
    monkeypatch.setattr(hooks, "SECONDS", 0.5)
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]
    certificate = self_signed(tmp_path) if is_sealed else None
    if certificate is not None:
        trusting = ssl.create_default_context(cafile=str(certificate))
        monkeypatch.setattr(hooks.ssl, "create_default_context", lambda: trusting)
    with receiver(None, certificate=certificate) as there:  # answers a byte at a time, for ever
        hook, _ = hook_at(there.url)
        hooks.send_test(hook)
        hooks.send_due()
    assert Delivery.objects.get().state == "waiting"
    assert Delivery.objects.get().error


@pytest.mark.parametrize(
    "url",
    ["", "x", "ftp://x.example/", "https://", "https://u:p@x.example/", "https://x.example/a b", "http://x.example:0/"],
)
def test_what_is_no_address_is_refused_by_name(url):
    with pytest.raises(ServiceError) as refused:
        hooks.make_hook(tenant=None, url=url)
    assert refused.value.field == "url"


def test_secrets_are_sealed_and_follow_a_new_secret(settings):
    hook, secret = hook_at("https://x.example/")
    assert secret not in hook.sealed_secret
    settings.SLUICE_CREDENTIAL_FALLBACKS = [settings.SLUICE_CREDENTIAL_SECRET, *settings.SLUICE_CREDENTIAL_FALLBACKS]
    settings.SLUICE_CREDENTIAL_SECRET = "another secret of this installation"
    assert hooks.reseal() == []
    settings.SLUICE_CREDENTIAL_FALLBACKS = []
    assert unseal(WebHook.objects.get().sealed_secret) == secret


def test_there_are_not_too_many(acme):
    for number in range(hooks.MOST_HOOKS):
        hook_at(f"https://x.example/{number}", tenant=acme.tenant)
    with pytest.raises(ServiceError, match="delete one first"):
        hook_at("https://x.example/more", tenant=acme.tenant)
    assert alerts.receivers(None) == []
