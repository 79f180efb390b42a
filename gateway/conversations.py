"""Conversations of the chat page: one row each, whole, bounded, and only where the tenant lets prompts be stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self
from uuid import UUID

import msgspec
from django.db import IntegrityError, models, transaction
from django.db.models import Q, Sum
from django.db.models.functions import Now
from msgspec import Meta

from base import clock
from base.errors import ServiceError
from tenancy.audit.trail import record
from tenancy.models import Tenant, User
from tenancy.models.scoping import TenantManager

MOST_BYTES = 4 * 1024 * 1024  # of one, its images included
MOST_TURNS = 2048
MOST_OF_ONE = 500  # conversations of one person in one tenant
MOST_BYTES_OF_ONE = 256 * 1024 * 1024  # all of them
TITLE = 120  # characters
_WORDS = 64 * 1024  # characters that a search reads

Identifier = Annotated[str, Meta(min_length=1, max_length=64)]


class Conversation(models.Model):
    """A member's conversation. No page but its owner's shows it, unless it is shared: then members may read it.

    `content` is the JSON of a `Content`. `revision` counts the changes of it: who saves says which one they changed.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    title = models.CharField(max_length=TITLE)
    content = models.BinaryField()
    words = models.TextField(help_text="The text of its turns, for the search.")
    size = models.PositiveBigIntegerField()
    revision = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now())
    changed_at = models.DateTimeField()
    shared_at = models.DateTimeField(null=True)

    objects: ClassVar[TenantManager[Self]] = TenantManager()

    class Meta:
        app_label = "gateway"
        ordering = ["-changed_at", "-id"]
        indexes = [
            models.Index(fields=["tenant", "user", "-changed_at"], name="conversations_of_person"),
            models.Index(fields=["changed_at"], name="conversations_by_age"),
        ]

    def __str__(self) -> str:
        return f"conversation {self.id}"

    def told(self) -> dict[str, Any]:
        """Return all of it, JSON-ready."""
        return {**self.line(), "revision": self.revision, **msgspec.json.decode(bytes(self.content))}

    def line(self) -> dict[str, Any]:
        """Return what a list shows of it, JSON-ready."""
        return {
            "id": str(self.id),
            "title": self.title,
            "changed_at": self.changed_at.isoformat(),
            "is_shared": self.shared_at is not None,
        }

    def path(self) -> list[dict[str, Any]]:
        """Return the turns from the first to the leaf that was looked at last."""
        content = msgspec.json.decode(bytes(self.content))
        turns = {turn["id"]: turn for turn in content["turns"]}
        found: list[dict[str, Any]] = []
        at = content["leaf"]
        while at in turns and len(found) <= len(turns):
            found.append(turns[at])
            at = turns[at].get("parent")
        return found[::-1]


class Turn(msgspec.Struct):
    """A question or an answer; the page keeps more with it. Turns with one `parent` are branches."""

    id: Identifier
    role: Literal["user", "assistant"]
    content: str
    parent: Identifier | None = None


class Content(msgspec.Struct):
    """The tree of turns, and the leaf of the branch that was looked at last; `settings` are what the next is asked
    with.
    """

    turns: Annotated[list[Turn], Meta(max_length=MOST_TURNS)]
    leaf: Identifier | None = None
    settings: dict[str, Any] = {}


class Draft(msgspec.Struct):
    """A conversation as a page saves it: the `revision` that it changed, 0 for a new one, which the `title` is for."""

    content: bytes
    words: str
    revision: int
    title: str


def draft_of(body: bytes) -> Draft:
    """Return what a page sent as JSON; raise ServiceError for what can't be kept."""
    if len(body) > MOST_BYTES:
        raise ServiceError("turns", f"A conversation has at most {MOST_BYTES:,} bytes: go on in a new chat.")
    try:
        sent = msgspec.json.decode(body)
        content = msgspec.convert(sent, Content)
        revision, title = msgspec.convert(sent.get("revision", 0), int), msgspec.convert(sent.get("title", ""), str)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ServiceError("turns", f"This is no conversation: {str(error)[:200]}.") from None
    _check_tree(content.turns)
    kept = {"turns": sent["turns"], "leaf": content.leaf, "settings": content.settings}
    words = "\n".join(turn.content for turn in content.turns)[:_WORDS].replace("\x00", "")
    return Draft(msgspec.json.encode(kept), words, revision, title_of(title or words or "New chat"))


def _check_tree(turns: Sequence[Turn]) -> None:
    seen: set[str] = set()
    for turn in turns:
        if turn.id in seen or (turn.parent is not None and turn.parent not in seen):
            raise ServiceError("turns", f"Turn '{turn.id}' is there twice, or stands before its parent.")
        seen.add(turn.id)


def title_of(text: str) -> str:
    """Return a title of these words; raise ServiceError where there are none."""
    title = " ".join(text.replace("\x00", "").split())[:TITLE]
    if not title:
        raise ServiceError("title", "A conversation needs a name.")
    return title


def may_store(tenant: Tenant) -> bool:
    """Whether conversations of the tenant's members may be stored here."""
    return tenant.response_storage != Tenant.Storage.FORBIDDEN


def found(*, tenant: Tenant, user: User, query: str = "") -> list[dict[str, Any]]:
    """Return the lines of the person's conversations, the latest first; of those with the words of `query`."""
    mine = Conversation.objects.of(tenant).filter(user=user).defer("content", "words")
    for word in query.replace("\x00", "").split()[:8]:
        mine = mine.filter(Q(title__icontains=word) | Q(words__icontains=word))
    return [one.line() for one in mine[:MOST_OF_ONE]]


@transaction.atomic
def save(*, tenant: Tenant, user: User, identifier: UUID, draft: Draft) -> tuple[Conversation | None, bool]:
    """Save the draft, and return the row and whether it is saved: not where somebody, whose row that is, or who deleted
    it, was faster. Raise ServiceError where nothing may be stored, or there are too many.
    """
    if not may_store(tenant):
        raise ServiceError(
            "", "Your tenant lets no conversations be stored here: an owner can allow it in the settings."
        )
    mine = Conversation.objects.of(tenant).filter(user=user)
    others = mine.exclude(id=identifier).aggregate(all=Sum("size"))["all"] or 0
    if others + len(draft.content) > MOST_BYTES_OF_ONE:
        raise ServiceError("", "Your conversations take too much room here: delete some that you no longer need.")
    row = mine.select_for_update().filter(id=identifier).first()
    if row is None:
        return (None, False) if draft.revision else (_made(tenant, user, identifier, draft), True)
    if row.revision != draft.revision:
        return row, False
    row.content, row.words, row.size = draft.content, draft.words, len(draft.content)
    row.changed_at = clock.now()
    row.revision += 1
    row.save(update_fields=["content", "words", "size", "changed_at", "revision"])
    return row, True


def _made(tenant: Tenant, user: User, identifier: UUID, draft: Draft) -> Conversation:
    if Conversation.objects.of(tenant).filter(user=user).count() >= MOST_OF_ONE:
        raise ServiceError("", f"You have {MOST_OF_ONE} conversations here: delete some that you no longer need.")
    row = Conversation(
        id=identifier,
        tenant=tenant,
        user=user,
        title=draft.title,
        content=draft.content,
        words=draft.words,
        size=len(draft.content),
        changed_at=clock.now(),
    )
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:  # somebody else's
        raise ServiceError("", "A conversation with this id can't be made: begin a new chat.") from None
    return row


def rename(*, conversation: Conversation, title: str) -> None:
    """Give it another name."""
    conversation.title = title_of(title)
    conversation.save(update_fields=["title"])


@transaction.atomic
def delete(*, conversation: Conversation) -> None:
    """Delete somebody else's conversation; the audit trail says so."""
    record("conversation.deleted", conversation, tenant=conversation.tenant_id)
    conversation.delete()


@transaction.atomic
def share(*, conversation: Conversation, shared: bool) -> None:
    """Let members of the tenant who may chat read it, or no longer; the audit trail says so."""
    if shared == (conversation.shared_at is not None):
        return
    conversation.shared_at = clock.now() if shared else None
    conversation.save(update_fields=["shared_at"])
    action = "conversation.shared" if shared else "conversation.unshared"
    record(action, conversation, tenant=conversation.tenant_id)
