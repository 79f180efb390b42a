"""The operator's pages of people: roles, sessions, links, addresses, the end of an account."""

from __future__ import annotations

import re

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.contrib.auth.models import Group
from django.urls import reverse

from base.errors import RoleError
from control.belongings import erasure
from control.operate import people as people_page
from tenancy.models import AuditEvent, Membership, SignInLink, User
from tenancy.services import roles
from tests.control.operators import browser_of, operator, text_of
from tests.gateway.post import sent_mail

pytestmark = pytest.mark.django_db


@pytest.fixture
def root(db):
    return browser_of(operator())


def page(name, user):
    return reverse(f"operate-person-{name}" if name else "operate-person", args=[user.pk])


def names_in(answer):
    return re.findall(r'<th scope="row" class="name"[^>]*><a href="[^"]*">([^<]*)</a>', text_of(answer))


def test_people_are_found_filtered_and_turned(root, acme, other, monkeypatch, django_assert_num_queries):
    monkeypatch.setattr(people_page, "PAGE", 2)
    operator("billing")
    nobody = User.objects.create_user("zoe@example.com", name="Zoë Nobody", is_active=False)
    path = reverse("operate-people")
    root.get(path)  # notes that the session is in use
    with django_assert_num_queries(7):
        first = root.get(path)
    assert names_in(first) == ["billing@example.com", "owner@acme.example"]
    assert 'href="/operate/tenants/acme/">Acme</a> (owner)' in text_of(first)
    following = re.search(r'href="([^"]*)">Next<', text_of(first))[1].replace("&amp;", "&")
    second = root.get(path + following)
    assert names_in(second) == ["owner@other.example", "root@example.com"]
    previous = re.search(r'href="([^"]*)">Previous<', text_of(second))[1].replace("&amp;", "&")
    assert names_in(root.get(path + previous)) == names_in(first)
    for query, found in (
        ({"q": "zoë"}, [nobody.email]),
        ({"kind": "operators"}, ["billing@example.com", "root@example.com"]),
        ({"kind": "members"}, ["owner@acme.example", "owner@other.example"]),
        ({"kind": "nobody"}, [nobody.email]),
        ({"state": "deactivated"}, [nobody.email]),
        ({"q": "nothing like it"}, []),
    ):
        assert names_in(root.get(path, query)) == found, query
    assert "Sees everything, changes nothing." in text_of(first)


def test_a_persons_page_has_tenants_keys_and_what_they_did(root, acme, django_assert_max_num_queries):
    with django_assert_max_num_queries(15):
        text = text_of(root.get(page("", acme.owner)))
    for part in ('href="/operate/tenants/acme/"', "Owner", "all", "invitation", page("deactivate", acme.owner)):
        assert part in text
    assert not re.findall(r">[^<]*[0-9a-f]{8}-[0-9a-f]{4}-7[^<]*<", text)


def test_an_operator_is_made_and_given_roles(root):
    operator("viewer")
    groups = {group.name: str(group.pk) for group in Group.objects.all()}
    asked = {"email": "New@Example.com", "name": "Neo", "is_operator": "on", "groups": [groups["support"]]}
    root.post(reverse("operate-person-new"), asked)
    user = User.objects.get(email="new@example.com")
    assert (user.is_staff, user.is_superuser, user.has_usable_password()) == (True, False, False)
    assert [group.name for group in user.groups.all()] == ["support"]
    taken = root.post(reverse("operate-person-new"), asked)
    assert re.search(r'id="id_email_error"><li>Another user has this address', text_of(taken))
    root.post(page("role", user), {"is_operator": "on", "groups": [groups["billing"]], "may_all": "on"})
    user = User.objects.get(pk=user.pk)
    assert (user.is_superuser, [group.name for group in user.groups.all()]) == (True, ["billing"])
    events = AuditEvent.objects.unscoped().filter(action="user.groups").order_by("pk")
    assert [event.after["groups"] for event in events if event.target == user.email][::2] == [["support"], ["billing"]]
    root.post(page("role", user), {})
    user = User.objects.get(pk=user.pk)
    assert (user.is_staff, user.is_superuser, user.groups.exists()) == (False, False, False)


def test_nobody_gives_what_they_lack_nor_changes_who_may_more(acme):
    root, user = operator(), operator("support")
    user.user_permissions.set(
        Group.objects.get(name="admin").permissions.filter(codename__in=["change_user", "add_user"])
    )
    client = browser_of(user)
    groups = {group.name: str(group.pk) for group in Group.objects.all()}
    offered = text_of(client.get(page("role", acme.owner)))
    assert f'value="{groups["support"]}"' in offered
    assert f'value="{groups["admin"]}"' not in offered
    assert "may_all" not in offered
    for asked in (
        {"is_operator": "on", "groups": [groups["admin"]]},
        {"is_operator": "on", "groups": [groups["billing"]], "may_all": "on"},
    ):
        assert client.post(page("role", acme.owner), asked).status_code == 400
    client.post(page("role", acme.owner), {"is_operator": "on", "may_all": "on"})
    assert not User.objects.get(pk=acme.owner.pk).is_superuser
    for name, asked in (("role", {}), ("deactivate", {"typed": root.email}), ("name", {"name": "x"})):
        refused = client.post(page(name, root), asked)
        assert refused.status_code == 400, name
        assert "may do more than you" in text_of(refused)
    for name in ("link", "address"):
        refused = client.post(page(name, acme.owner), {"email": "mine@example.com"})
        assert "Only superusers may act as another person." in text_of(refused)
        assert page(name, acme.owner) not in text_of(client.get(page("", acme.owner)))
    assert not SignInLink.objects.exists()
    assert User.objects.get(pk=root.pk).is_active
    assert page("role", root) not in text_of(client.get(page("", root)))
    viewer = browser_of(operator("viewer"))
    for name in ("role", "deactivate", "name", "link", "address", "erase"):
        assert viewer.get(page(name, acme.owner)).status_code == 403, name


def test_the_service_gives_no_role_that_who_gives_it_lacks(acme):
    support = operator("support")
    admin = list(Group.objects.filter(name="admin"))
    for asked in ({"groups": admin}, {"may_all": True}):
        with pytest.raises(RoleError):
            roles.set_role(user=acme.owner, by=support, is_operator=True, **asked)
    with pytest.raises(RoleError):
        roles.make_person(by=support, email="new@x.example", is_operator=True, groups=admin)
    assert not User.objects.filter(email="new@x.example").exists()
    assert not User.objects.get(pk=acme.owner.pk).is_staff


def test_a_deactivated_persons_session_ends(root, acme):
    browser = acme.client()
    assert browser.get("/usage/").status_code == 200
    assert root.post(page("deactivate", acme.owner), {"typed": "somebody"}).status_code == 400
    root.post(page("deactivate", acme.owner), {"typed": acme.owner.email})
    assert browser.get("/usage/").status_code == 302
    root.post(page("activate", acme.owner))
    assert browser.get("/usage/").status_code == 200
    me = User.objects.get(email="root@example.com")
    assert root.post(page("deactivate", me), {"typed": me.email}).status_code == 400
    assert root.post(page("role", me), {}).status_code == 400
    assert User.objects.get(pk=me.pk).is_superuser


def test_a_sign_in_link_is_shown_once_and_an_address_confirmed_by_mail(root, acme, client):
    text = text_of(root.post(page("link", acme.owner), follow=True))
    address = re.search(r'data-copy-text="([^"]*/links/[^"]*)"', text)[1]
    assert "/links/" not in text_of(root.get(page("", acme.owner)))
    client.post(address)
    assert client.get("/usage/").status_code == 200
    root.post(page("address", acme.owner), {"email": "Boss@Acme.example"})
    assert User.objects.get(pk=acme.owner.pk).email == "owner@acme.example"
    assert sent_mail()[-1].to == ["boss@acme.example"]
    taken = root.post(page("address", acme.owner), {"email": "root@example.com"})
    assert re.search(r'id="id_email_error"><li>Another user has this address', text_of(taken))


def test_a_person_is_erased_once_that_leaves_no_tenant_without_owner(root, acme, monkeypatch):
    monkeypatch.setattr(erasure, "FELT_AFTER", 0)
    asked = text_of(root.get(page("erase", acme.owner)))
    assert "is the last owner of Acme" in asked
    refused = root.post(page("erase", acme.owner), {"typed": acme.owner.email})
    assert refused.status_code == 400
    assert User.objects.get(pk=acme.owner.pk).email == "owner@acme.example"
    heir = User.objects.create_user("heir@acme.example")
    Membership(tenant=acme.tenant, user=heir, role="owner").save(force_insert=True)
    done = text_of(root.post(page("erase", acme.owner), {"typed": acme.owner.email}, follow=True))
    assert "The person is erased." in done
    assert "Erased" in done
    assert "owner@acme.example" not in done
    assert page("erase", acme.owner) not in done


def test_a_superuser_resets_a_second_factor_with_a_reason_and_the_address_typed(root, acme):
    path = page("factors", acme.owner)
    assert "Reset second factor" not in text_of(root.get(page("", acme.owner)))
    TOTP.activate(acme.owner, generate_totp_secret())
    RecoveryCodes.activate(acme.owner)
    assert path in text_of(root.get(page("", acme.owner)))
    asked = {"reason": "lost the phone", "typed": acme.owner.email}
    assert root.post(path, {**asked, "typed": "somebody"}).status_code == 400
    assert root.post(path, {**asked, "reason": ""}).status_code == 400
    limited = browser_of(operator("admin"))
    assert "Only superusers" in text_of(limited.post(path, asked))
    assert Authenticator.objects.count() == 2
    assert root.post(path, asked).status_code == 302
    assert not Authenticator.objects.exists()
    gone = AuditEvent.objects.unscoped().filter(action="second_factor.deleted")
    assert {(event.actor, event.after["reason"]) for event in gone} == {("root@example.com", "lost the phone")}
    assert any("removed" in one.subject and acme.owner.email in one.to for one in sent_mail())
    assert "has no second factor" in text_of(root.post(path, asked))


def test_nobody_resets_their_own_second_factor_there(root):
    me = User.objects.get(email="root@example.com")
    TOTP.activate(me, generate_totp_secret())
    answer = root.post(page("factors", me), {"reason": "no wish to type", "typed": me.email})
    assert answer.status_code == 400
    assert Authenticator.objects.exists()
