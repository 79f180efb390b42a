"""Conversations of the chat page: whose they are, their bounds, and who reads shared ones."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from django.test import Client

from gateway import conversations
from gateway.conversations import Conversation
from tenancy.models import AuditEvent, Membership, Tenant
from tenancy.services import tenants

pytestmark = pytest.mark.django_db
LIST = "/chat/conversations/"
QUESTION = {"id": "q", "parent": None, "role": "user", "content": "Where does the Rhine begin?"}
ANSWER = {"id": "a", "parent": "q", "role": "assistant", "content": "In the Alps.", "state": "done", "model": "river"}


def at(identifier):
    return f"{LIST}{identifier}/"


def put(client, identifier, turns=(QUESTION, ANSWER), **fields):
    sent = {"turns": list(turns), "leaf": turns[-1]["id"] if turns else None, "revision": 0, "title": "Rivers"}
    return client.put(at(identifier), json.dumps(sent | fields), content_type="application/json")


def patch(client, identifier, **changes):
    return client.patch(at(identifier), json.dumps(changes), content_type="application/json")


def titles(client, query=""):
    return [line["title"] for line in client.get(LIST, {"q": query}).json()["data"]]


@pytest.fixture
def kept(acme):
    """Return the id of a conversation of acme's owner."""
    identifier = uuid4()
    assert put(acme.client(), identifier).json()["is_saved"]
    return identifier


def test_what_is_saved_is_listed_searched_read_renamed_and_deleted(acme, kept):
    client = acme.client()
    put(client, uuid4(), [{**QUESTION, "content": "Name a lake"}], title="")
    assert titles(client) == ["Name a lake", "Rivers"]
    assert titles(client, "rhine ALPS") == ["Rivers"]
    assert titles(client, "rhine lake") == []
    found = client.get(at(kept)).json()["conversation"]
    assert (found["turns"], found["leaf"], found["revision"]) == ([QUESTION, ANSWER], "a", 1)
    assert patch(client, kept, title=" The \n Rhine ").json()["title"] == "The Rhine"
    gone = client.delete(at(kept)).json()["conversation"]
    assert (gone["title"], gone["turns"]) == ("The Rhine", [QUESTION, ANSWER])
    assert client.get(at(kept)).json() == {"conversation": None}
    assert put(client, kept, gone["turns"], title=gone["title"]).json()["is_saved"]  # undone
    assert titles(client) == ["The Rhine", "Name a lake"]


def test_of_two_windows_the_second_is_told_what_the_first_saved(acme, kept):
    client, more = acme.client(), {**QUESTION, "id": "q2", "parent": "a"}
    assert put(client, kept, (QUESTION, ANSWER, more), revision=1).json()["revision"] == 2
    stale = put(client, kept, (QUESTION, ANSWER), revision=1).json()
    assert stale["is_saved"] is False
    assert [turn["id"] for turn in stale["conversation"]["turns"]] == ["q", "a", "q2"]
    client.delete(at(kept))
    assert put(client, kept, (QUESTION,), revision=2).json() == {"is_saved": False, "conversation": None}
    assert not Conversation.objects.of(acme.tenant).exists()


def test_nobody_else_sees_changes_or_takes_it(acme, other, people, kept):
    for client in (people("member"), other.client()):
        assert titles(client) == []
        assert client.get(at(kept)).json() == {"conversation": None}
        assert patch(client, kept, title="mine").status_code == 404
        assert client.delete(at(kept)).status_code == 404
        assert put(client, kept).status_code == 400  # its id is taken
        assert put(client, kept, revision=1).json() == {"is_saved": False, "conversation": None}
        assert client.get(f"/chat/shared/{kept}/").status_code == 404
    [row] = Conversation.objects.unscoped()
    assert (row.tenant, row.user, row.title, row.revision) == (acme.tenant, acme.owner, "Rivers", 1)


def test_members_who_may_chat_read_what_is_shared_and_others_do_not(acme, other, people, kept):
    member, address = people("member"), f"/chat/shared/{kept}/"
    assert patch(acme.client(), kept, is_shared=True).json()["is_shared"] is True
    page = member.get(address)
    assert page.status_code == 200
    assert "In the Alps." in page.content.decode()
    assert titles(member) == []
    assert other.client().get(address).status_code == 404
    assert people("billing").get(address).status_code == 404
    assert Client().get(address).status_code == 302
    patch(acme.client(), kept, is_shared=False)
    assert member.get(address).status_code == 404
    told = AuditEvent.objects.of(acme.tenant).filter(target_id=str(kept)).order_by("at")
    assert [event.action for event in told] == ["conversation.shared", "conversation.unshared"]
    assert "Rivers" not in {event.target for event in told}


def test_a_shared_branch_is_the_one_that_was_looked_at_last(acme, people):
    identifier, again = uuid4(), {**ANSWER, "id": "b", "content": "<b>At a glacier.</b>"}
    put(acme.client(), identifier, (QUESTION, ANSWER, again), leaf="b")
    patch(acme.client(), identifier, is_shared=True)
    page = people("member").get(f"/chat/shared/{identifier}/").content.decode()
    assert "&lt;b&gt;At a glacier." in page
    assert "In the Alps." not in page


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ([QUESTION, QUESTION], "twice"),
        ([{**ANSWER, "parent": "nobody"}], "before its parent"),
        ([{**QUESTION, "role": "system"}], "role"),
        ([{"id": "q", "role": "user"}], "content"),
        ([{**QUESTION, "id": "x" * 65}], "id"),
        ([{**QUESTION, "id": str(number)} for number in range(conversations.MOST_TURNS + 1)], "length"),
    ],
)
def test_what_is_no_conversation_is_refused(acme, turns, told):
    answer = put(acme.client(), uuid4(), turns)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_saved")
    assert told in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", ["", "[]", "null", '{"turns": 5}', "[" * 100_000, '{"turns": [], "revision": "x"}'])
def test_a_body_that_is_something_else_is_refused(acme, body):
    assert acme.client().put(at(uuid4()), body, content_type="application/json").status_code == 400


def test_sizes_and_numbers_are_bounded(acme, kept, monkeypatch):
    monkeypatch.setattr(conversations, "MOST_BYTES", 2000)
    assert (
        "2,000 bytes" in put(acme.client(), uuid4(), [{**QUESTION, "content": "x" * 2000}]).json()["error"]["message"]
    )
    monkeypatch.setattr(conversations, "MOST_OF_ONE", 1)
    assert "You have 1 conversations" in put(acme.client(), uuid4()).json()["error"]["message"]
    assert put(acme.client(), kept, revision=1).json()["is_saved"]  # one that is there can go on
    assert put(acme.client(), kept, [{**QUESTION, "content": "\x00 a \x00"}], revision=2).json()["is_saved"]


def test_a_body_beyond_what_pages_take_is_told_as_too_large(acme, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    assert put(acme.client(), uuid4(), [{**QUESTION, "content": "x" * 2000}]).status_code == 413


def test_a_tenant_that_lets_nothing_be_stored_has_no_conversations(acme, people, kept):
    patch(acme.client(), kept, is_shared=True)
    tenants.set_settings(tenant=acme.tenant, response_storage=Tenant.Storage.FORBIDDEN)
    answer = put(acme.client(), uuid4())
    assert answer.status_code == 400
    assert "can allow it" in answer.json()["error"]["message"]
    assert people("member").get(f"/chat/shared/{kept}/").status_code == 404


def test_who_may_not_chat_has_none_and_strangers_are_told_to_sign_in(acme, people, kept):
    assert people("billing").get(LIST).status_code == 403
    assert Client().get(LIST).status_code == 401
    assert Client().delete(at(kept)).status_code == 401
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(acme.owner, backend="django.contrib.auth.backends.ModelBackend")
    assert put(strict, kept, revision=1).status_code == 403


def test_queries_are_few(acme, kept, django_assert_num_queries):
    client = acme.client()
    for _ in range(3):
        put(client, uuid4())
    with django_assert_num_queries(4):
        assert len(client.get(LIST).json()["data"]) == 4
    with django_assert_num_queries(9):
        put(client, kept, revision=1)


def test_owners_withdraw_what_is_shared_and_delete_it_once_its_author_has_left(acme, other, people):
    member, theirs, mine = people("member"), uuid4(), uuid4()
    put(member, theirs, title="Of a leaver")
    put(acme.client(), mine, title="Of the owner")
    for client, identifier in ((member, theirs), (acme.client(), mine)):
        patch(client, identifier, is_shared=True)
    listed = member.get("/chat/shared/").content.decode()
    assert "Of a leaver" in listed
    assert "Unshare" not in listed
    end = f"/chat/shared/{theirs}/end/"
    owner = acme.client()
    admin = people("admin")
    for client in (member, admin, other.client()):
        assert client.post(end, {"act": "delete"}).status_code == 404
    owner.post(f"/chat/shared/{mine}/end/", {"act": "delete"})  # of a member: withdrawn, never deleted
    assert Conversation.objects.of(acme.tenant).get(id=mine).shared_at is None
    Membership.objects.of(acme.tenant).filter(user__email="member@acme.example").update(is_active=False)
    assert owner.get(f"/chat/shared/{theirs}/").status_code == 404
    assert "Of a leaver" not in admin.get("/chat/shared/").content.decode()
    assert "its author has left" in owner.get("/chat/shared/").content.decode()
    owner.post(end, {"act": "delete"})
    assert not Conversation.objects.of(acme.tenant).filter(id=theirs).exists()
    told = AuditEvent.objects.of(acme.tenant).filter(target_id=str(theirs)).order_by("at")
    assert [(event.action, event.actor) for event in told] == [
        ("conversation.shared", "member@acme.example"), ("conversation.deleted", acme.owner.email),
    ]  # fmt: skip
    assert owner.post(end, {"act": "delete"}).status_code == 404
