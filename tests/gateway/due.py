"""Rows of files, adapters, batches and stored answers for which periodic work has something to do, and how they end."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.utils import timezone

from base import storage
from base.ids import uuid7
from fleet import adapter_files
from gateway.apis.responses.models import StoredResponse
from gateway.batches.files import StoredFile
from gateway.batches.models import Batch, BatchLine
from gateway.batches.services import new_batch
from gateway.durable.models import KeptAnswer
from routing.models import Adapter, PublicModel
from tests.parties import Party

ENDPOINT = "/v1/chat/completions"
BATCHES, LINES = 4, 3  # of each kind
LATER = timedelta(days=400)  # beyond everything that a test waits for
_State, _Status = StoredFile.State, Batch.Status
ANSWERED = {"state": BatchLine.State.COMPLETED, "answer": "{}"}


def keep_here(settings, folder):
    """Let files lie in a folder of the test's own."""
    settings.SLUICE_HOME = folder
    files = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": str(folder / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}


def make(party: Party, many: int) -> None:
    """Make `many` files, adapters' tensors, responses and answers, and batches in every state that isn't an end."""
    old, now = timezone.now() - LATER, timezone.now()
    for state in (_State.READY, _State.DELETED, _State.PENDING):
        for _ in range(many):
            _file(party, b"over", expires_at=old, state=state)
    _adapters(many)
    for _ in range(many):
        running = {"status": "in_progress", "is_background": True, "expires_at": now + LATER}
        for fields in (running, {"status": "completed", "expires_at": old}):
            StoredResponse(
                id=uuid7(), tenant=party.tenant, project=party.project, input=b"[]", body=b"{}", size=4, **fields
            ).save(force_insert=True)
        run = uuid7()
        KeptAnswer(
            tenant=party.tenant, key=run.hex, digest=b"d", run=run, lease_until=old, expires_at=old, finished_at=old
        ).save(force_insert=True)
    for _ in range(BATCHES):
        _batch(party, _lines(), _Status.VALIDATING)
        _batch(party, b"no request\n", _Status.VALIDATING)
        _batch(party, _lines(), _Status.IN_PROGRESS)
        _batch(party, _lines(), _Status.CANCELLING)
        _batch(party, _lines(), _Status.COMPLETED, ended_at=old)


def _file(party, content, **fields):
    file = StoredFile(
        tenant=party.tenant, project=party.project, purpose="batch", filename="in.jsonl", bytes=len(content), **fields
    )
    draft = storage.drafts() / file.id.hex
    draft.write_bytes(content)
    storage.put(file, draft)
    file.save(force_insert=True)
    return file


def _adapters(many):
    """One that is served, and the tensors of many that nobody knows of."""
    base, own = (PublicModel.objects.create(name=name, kinds=["chat"], context_length=9) for name in ("base", "own"))
    weights = storage.drafts() / "weights"
    weights.write_bytes(b"tensors")
    adapter_files.put(Adapter.objects.create(model=own, base=base, config={}, rank=8, bytes=7), weights)
    for _ in range(many):
        adapter_files.put(Adapter(), weights)
    weights.unlink()


def _lines():
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    lines = ({"custom_id": str(n), "method": "POST", "url": ENDPOINT, "body": body} for n in range(LINES))
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _batch(party, content, status, **fields):
    file = _file(party, content, expires_at=timezone.now() + LATER, state=_State.READY)
    batch = new_batch(
        tenant=party.tenant.id, project=party.project.id, api_key=party.key.id, endpoint=ENDPOINT, input_file=file.id
    )
    batch.status, batch.expires_at = status, timezone.now() + LATER
    batch.total = 0 if status == _Status.VALIDATING else LINES
    batch.in_progress_at = timezone.now() if batch.total else None
    for name, value in fields.items():
        setattr(batch, name, value)
    batch.save(force_insert=True)
    if batch.total:
        size = len(content) // LINES
        for number in range(LINES):
            BatchLine.objects.create(
                batch=batch, number=number + 1, custom_id=str(number), offset=number * size, size=size - 1,
                due_at=timezone.now(), **(ANSWERED if status == _Status.IN_PROGRESS else {}),
            )  # fmt: skip


def figures():
    """What the runs are to lead to, without ids and times."""
    bytes_of = Path(settings.SLUICE_HOME, "files").rglob("*")
    return {
        "files": Counter(StoredFile.objects.unscoped().values_list("purpose", "state")),
        "stored": Counter(path.parent.name == Adapter.FOLDER for path in bytes_of if path.is_file()),
        "batches": Counter(Batch.objects.unscoped().values_list("status", "total", "completed", "failed")),
        "open_lines": BatchLine.objects.filter(batch__ended_at=None).count(),
        "responses": Counter(StoredResponse.objects.unscoped().values_list("status", flat=True)),
        "answers": KeptAnswer.objects.unscoped().count(),
    }


def assert_all_done(found, many):
    outputs = 2 * BATCHES  # one of each batch whose lines had ended, or never run
    assert found["files"] == {("batch", _State.READY): 5 * BATCHES, ("batch_output", _State.READY): outputs}
    assert found["stored"] == {False: 5 * BATCHES + outputs, True: 1}
    assert found["batches"] == {
        ("in_progress", LINES, 0, 0): BATCHES,  # a gateway runs their lines
        ("completed", LINES, 0, 0): BATCHES,
        ("failed", 0, 0, 0): BATCHES,
        ("cancelled", LINES, 0, LINES): BATCHES,
    }
    assert found["open_lines"] == BATCHES * LINES
    assert found["responses"] == {"failed": many}
    assert found["answers"] == 0
