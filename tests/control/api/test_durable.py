"""``Idempotency-Key`` in the management API: what a POST made is made once, however often it is sent."""

from __future__ import annotations

import zlib
from functools import partial

import pytest

from base.sealing import unseal_bytes
from gateway.durable.models import KeptAnswer
from tenancy.models import APIKey
from tenancy.services import admin_keys, keys

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]

URL = "/api/v1/keys/"


def make(client, party, body, key="m1", bearer=None):
    headers = {**(bearer or party.admin_bearer), "idempotency-key": key}
    return client.post(URL, body, content_type="application/json", headers=headers)


def test_a_key_sent_twice_is_made_once_and_its_secret_is_stored_sealed(client, acme):
    before = APIKey.objects.unscoped().count()
    first, again = (make(client, acme, {"name": "ci"}) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["cache-control"] == "no-store"
    assert APIKey.objects.unscoped().count() == before + 1
    [row] = KeptAnswer.objects.unscoped()
    assert first.json()["secret"].encode() not in zlib.decompress(unseal_bytes(bytes(row.body)))


def test_another_body_or_another_caller_is_refused(client, acme):
    make(client, acme, {"name": "ci"})
    other = make(client, acme, {"name": "other"})
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    _, secret = admin_keys.create_admin_key(tenant=acme.tenant, name="second")
    stranger = make(client, acme, {"name": "ci"}, bearer={"authorization": f"Bearer {secret}"})
    assert (stranger.status_code, stranger.json()["error"]["code"]) == (422, "idempotency_key_reused")


def test_another_admin_key_gets_no_secret_that_one_was_given(client, acme):
    names = ("terraform", "audit")
    secrets = [admin_keys.create_admin_key(tenant=acme.tenant, name=name)[1] for name in names]
    answers = [
        client.post(
            "/v1/organization/admin_api_keys",
            {"name": "ci"},
            content_type="application/json",
            headers={"authorization": f"Bearer {secret}", "idempotency-key": "m1"},
        )
        for secret in (secrets[0], secrets[0], secrets[1])
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 422]
    assert answers[0].content == answers[1].content
    assert answers[0].json()["value"] not in answers[2].content.decode()


def test_a_refusal_is_not_remembered_and_leaves_nothing(client, acme):
    assert make(client, acme, {"name": ""}).status_code == 400
    assert not KeptAnswer.objects.unscoped().exists()
    assert make(client, acme, {"name": "ci"}).status_code == 201


def test_a_key_that_is_none_is_refused(client, acme):
    answer = make(client, acme, {"name": "ci"}, key="x" * 256)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_idempotency_key")


def test_what_was_made_under_a_secret_that_is_gone_is_not_made_again(client, acme, settings):
    settings.SLUICE_CREDENTIAL_SECRET, settings.SLUICE_CREDENTIAL_FALLBACKS = "one" * 16, []
    make(client, acme, {"name": "ci"})
    settings.SLUICE_CREDENTIAL_SECRET = "two" * 16
    again = make(client, acme, {"name": "ci"})
    assert (again.status_code, again.json()["error"]["code"]) == (503, "answer_unreadable")
    assert APIKey.objects.unscoped().filter(name="ci").count() == 1


def test_the_longest_key_is_kept(client, acme):
    first, again = (make(client, acme, {"name": "ci"}, key="x" * 255) for _ in range(2))
    assert (first.status_code, again.content) == (201, first.content)


def test_the_lost_answer_of_a_rotation_is_had_again(client, acme):
    headers = {**acme.admin_bearer, "idempotency-key": "r1"}
    rotate = partial(client.post, f"{URL}{acme.key.id}/rotate/", {}, content_type="application/json", headers=headers)
    first, again = rotate(), rotate()
    assert (first.status_code, again.content) == (200, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert first.json()["last_four"] == APIKey.objects.of(acme.tenant).get(id=acme.key.id).last_four


def test_a_key_that_is_rotated_gets_its_answers_with_either_secret(client, acme):
    def ask(secret):
        headers = {"authorization": f"Bearer {secret}", "idempotency-key": "e1"}
        return client.post("/api/v1/projects/", {"name": "new"}, content_type="application/json", headers=headers)

    first = ask(acme.secret)
    _, secret = keys.rotate_key(tenant=acme.tenant, key=acme.key)
    assert first.status_code == 201
    assert [ask(one).content for one in (acme.secret, secret)] == [first.content] * 2
