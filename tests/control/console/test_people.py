"""People of a tenant on their page: invited, given another role, removed, and leaving."""

from __future__ import annotations

import re

import pytest

from tenancy.models import APIKey, Invitation, Membership, User
from tenancy.services import keys, members
from tests.gateway.post import sent_mail

pytestmark = pytest.mark.django_db


def text_of(response):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", response.content.decode()))


def open_ones(party):
    return list(Invitation.objects.of(party.tenant).filter(accepted_at=None).values_list("email", "role"))


def member_of(party, role):
    return Membership.objects.of(party.tenant).select_related("user").get(role=role, is_active=True)


def test_somebody_is_invited_reminded_and_told_no_more(acme):
    client = acme.client()
    answer = client.post("/people/invite/", {"email": "Bob@Acme.example", "role": "admin"}, follow=True)
    assert "bob@acme.example is invited as admin" in text_of(answer)
    assert open_ones(acme) == [("bob@acme.example", "admin")]
    first = Invitation.objects.of(acme.tenant).get(email="bob@acme.example")
    client.post(f"/people/invitations/{first.id}/resend/")
    second = Invitation.objects.of(acme.tenant).get(email="bob@acme.example")
    assert first.digest != second.digest
    assert len([mail for mail in sent_mail() if mail.to == ["bob@acme.example"]]) == 2
    answer = client.post(f"/people/invitations/{second.id}/withdraw/", follow=True)
    assert "is withdrawn" in text_of(answer)
    assert open_ones(acme) == []


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"email": "nobody", "role": "member"}, "This is not an email address."),
        ({"email": "owner@acme.example", "role": "member"}, "This person is a member already."),
        ({"email": "x@acme.example", "role": "king"}, "Unknown role"),
        ({}, "This is not an email address."),
    ],
    ids=str,
)
def test_what_is_wrong_with_an_invitation_is_told(acme, sent, told):
    assert told in text_of(acme.client().post("/people/invite/", sent, follow=True))
    assert open_ones(acme) == []


def test_invitations_are_bounded_by_tenant(acme, settings):
    settings.SLUICE_INVITATION_RATE = "1/hour"
    client = acme.client()
    client.post("/people/invite/", {"email": "a@acme.example", "role": "member"})
    answer = client.post("/people/invite/", {"email": "b@acme.example", "role": "member"}, follow=True)
    assert "sent too many invitations" in text_of(answer)
    assert open_ones(acme) == [("a@acme.example", "member")]


def test_admins_decide_about_all_but_owners(acme, people):
    client = people("admin")
    members.invite_member(tenant=acme.tenant, email="boss@acme.example", role="owner")
    people("billing")
    page = client.get("/people/").content.decode()
    owner, billing = member_of(acme, "owner"), member_of(acme, "billing")
    assert f"/people/{billing.id}/" in page
    assert f"/people/{owner.id}/" not in page
    assert "Resend<" not in page
    asked = Invitation.objects.of(acme.tenant).get(accepted_at=None)
    for path in (f"/people/{owner.id}/", f"/people/{owner.id}/remove/", f"/people/invitations/{asked.id}/withdraw/"):
        assert client.post(path, {"role": "member", "email": owner.user.email}).status_code == 404
    answer = client.post("/people/invite/", {"email": "x@acme.example", "role": "owner"}, follow=True)
    assert "Only owners decide about owners." in text_of(answer)
    assert client.post(f"/people/{billing.id}/", {"role": "owner"}).status_code == 400
    assert open_ones(acme) == [("boss@acme.example", "owner")]
    assert client.post(f"/people/{billing.id}/", {"role": "member"}).status_code == 302
    assert member_of(acme, "member") == billing


@pytest.mark.parametrize("role", ["member", "billing"])
def test_others_see_who_is_in_it_and_change_nothing(acme, people, role):
    client = people(role)
    members.invite_member(tenant=acme.tenant, email="asked@acme.example")
    text = text_of(client.get("/people/"))
    assert "owner@acme.example" in text
    assert "asked@acme.example" not in text
    assert "Invite by mail" not in text
    owner, asked = member_of(acme, "owner"), Invitation.objects.of(acme.tenant).get(accepted_at=None)
    for path in (
        "/people/invite/",
        f"/people/{owner.id}/",
        f"/people/{owner.id}/remove/",
        f"/people/invitations/{asked.id}/resend/",
    ):
        assert client.post(path, {"email": owner.user.email, "role": "member"}).status_code == 404


def test_a_member_is_removed_once_the_address_is_typed_and_the_keys_end(acme, people):
    gone = people("member")
    membership = member_of(acme, "member")
    key, _ = keys.create_key(
        tenant=acme.tenant, project=acme.project, name="theirs", scopes=["inference"], created_by=membership.user
    )
    client = acme.client()
    path = f"/people/{membership.id}/remove/"
    assert f"theirs …{key.last_four}" in text_of(client.get(path))
    assert client.post(path, {"email": "somebody@else.example"}).status_code == 400
    assert gone.get("/usage/").status_code == 200
    answer = client.post(path, {"email": membership.user.email}, follow=True)
    assert "“theirs” is revoked" in text_of(answer)
    assert gone.get("/usage/").status_code == 403
    assert APIKey.objects.of(acme.tenant).get(id=key.id).revoked_at is not None


def test_the_last_owner_stays(acme):
    client, owner = acme.client(), member_of(acme, "owner")
    for path, sent in (
        (f"/people/{owner.id}/", {"role": "member"}),
        (f"/people/{owner.id}/remove/", {"email": owner.user.email}),
        ("/people/leave/", {}),
    ):
        answer = client.post(path, sent)
        assert answer.status_code == 400
        assert "make somebody else owner first" in text_of(answer)


def test_anybody_may_leave(acme, people):
    client = people("billing")
    assert client.get("/people/leave/").status_code == 200
    assert client.post("/people/leave/").status_code == 302
    assert client.get("/people/").status_code == 403


def test_many_people_are_found_and_paged(acme, django_assert_max_num_queries):
    users = User.objects.bulk_create(
        [User(email=f"p{number:03}@acme.example", name=f"P{number}") for number in range(70)]
    )
    Membership.objects.bulk_create([Membership(tenant=acme.tenant, user=user, role="member") for user in users])
    client = acme.client()
    first = client.get("/people/").content.decode()
    older = re.search(r'href="(/people/\?after=[^"]*)">Older', first)[1]
    second = client.get(older).content.decode()
    shown = [set(re.findall(r"[\w]+@acme\.example", page)) - {"owner@acme.example"} for page in (first, second)]
    assert sum(map(len, shown)) == 70
    assert not shown[0] & shown[1]
    assert set(re.findall(r"p\d+@", client.get("/people/?q=p069").content.decode())) == {"p069@"}
    with django_assert_max_num_queries(15):
        client.get("/people/")
