"""Tenants' files and adapters in a backup: every one that has its bytes, and back where the settings say."""

from __future__ import annotations

import errno
from datetime import timedelta

import pytest
from django.utils import timezone
from django_scopes import scopes_disabled

from base import storage
from fleet import adapter_files
from gateway.batches.files import StoredFile
from operation.backup import files
from operation.backup.archive import BackupError
from routing.models import Adapter, PublicModel
from tenancy.models import Project, Tenant

State = StoredFile.State


@pytest.fixture
def stored(db, settings, tmp_path):
    """Makes a file of one tenant, with `content` or without bytes, in a storage of its own."""
    settings.SLUICE_HOME = tmp_path
    settings.STORAGES = {
        **settings.STORAGES,
        "files": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path / "files"), "file_permissions_mode": 0o600},
        },
    }
    tenant = Tenant.objects.create(name="Acme", slug="acme")
    with scopes_disabled():
        project = Project.objects.create(tenant=tenant, name="Default")

        def make(content, state=State.READY):
            until = timezone.now() + timedelta(days=1)
            file = StoredFile(
                tenant=tenant, project=project, purpose="batch", filename="in.jsonl", bytes=9, expires_at=until
            )
            file.state = state
            file.save(force_insert=True)
            if content is not None:
                draft = storage.drafts() / file.id.hex
                draft.write_bytes(content)
                storage.put(file, draft)
            return file

        yield make


def test_every_file_that_has_its_bytes_is_saved_and_put_back(stored, tmp_path):
    whole, deleted = stored(b"lines"), stored(b"deleted since", State.DELETED)
    stored(None)
    stored(b"in the middle", State.PENDING)
    found = files.Stored()
    saved = {key: (size, content.read()) for key, size, content in found}
    assert saved == {whole.key: (5, b"lines"), deleted.key: (13, b"deleted since")}
    assert found.missing == 1

    storage.remove(whole)
    member = tmp_path / "member"
    member.write_bytes(b"lines")
    with files.put_back({f"files/{whole.key}": member}):
        pass
    with storage.read(whole) as content:
        assert content.read() == b"lines"
    assert (tmp_path / "files" / whole.key).stat().st_mode & 0o777 == 0o600


@pytest.fixture
def adapter(stored, tmp_path):
    """An adapter whose tensors are stored."""
    base, own = (PublicModel.objects.create(name=name, kinds=["chat"], context_length=10) for name in ("base", "own"))
    adapter = Adapter.objects.create(model=own, base=base, config={}, rank=8, bytes=7)
    weights = tmp_path / "weights"
    weights.write_bytes(b"tensors")
    adapter_files.put(adapter, weights)
    return adapter


def test_every_adapter_that_has_its_tensors_is_saved_and_put_back(stored, adapter, tmp_path):
    whole = stored(b"lines")
    found = files.Stored()
    saved = {key: (size, content.read()) for key, size, content in found}
    assert saved == {whole.key: (5, b"lines"), adapter.key: (7, b"tensors")}

    adapter_files.remove(adapter)
    lacking = files.Stored()
    assert [key for key, _, _ in lacking] == [whole.key]
    assert lacking.missing == 1
    members = members_of(tmp_path, **{adapter.key: b"tensors"})
    files.check_names(members)
    with files.put_back(members):
        pass
    assert bytes_of(adapter) == b"tensors"
    assert (tmp_path / "files" / adapter.key).stat().st_mode & 0o777 == 0o600


def test_an_adapter_that_is_withdrawn_while_it_is_saved_counts_as_nothing_lost(adapter, monkeypatch):
    def late(gone):
        Adapter.objects.filter(id=gone.id).delete()
        raise FileNotFoundError

    monkeypatch.setattr(storage, "read", late)
    found = files.Stored()
    assert list(found) == []
    assert found.missing == 0


def test_a_restore_that_fails_leaves_no_adapter_that_was_not_there(adapter, tmp_path):
    adapter_files.remove(adapter)

    def restore():
        with files.put_back(members_of(tmp_path, **{adapter.key: b"tensors"})):
            raise BackupError("the database is in use")

    with pytest.raises(BackupError, match="in use"):
        restore()
    assert bytes_of(adapter) is None


def test_a_file_that_is_deleted_while_it_is_saved_ends_no_backup(stored, monkeypatch):
    gone, whole = stored(b"deleted"), stored(b"lines")
    read = storage.read

    def late(file):
        opened = read(file)
        if file.id == gone.id:  # its row, then its bytes, as the purge does
            StoredFile.objects.filter(id=gone.id).update(state=State.DELETED)
            storage.remove(gone)
        return opened

    monkeypatch.setattr(storage, "read", late)
    found = files.Stored()
    assert {key: (size, content.read()) for key, size, content in found} == {
        gone.key: (7, b"deleted"),
        whole.key: (5, b"lines"),
    }
    found = files.Stored()
    assert [key for key, _, _ in found] == [whole.key]
    assert found.missing == 0


def members_of(folder, **contents):
    """Members of an archive, in this order: the name of each stored file's key, and its content."""
    made = {}
    for number, (key, content) in enumerate(contents.items()):
        path = folder / f"member-{number}"
        path.write_bytes(content)
        made[f"files/{key}"] = path
    return made


def bytes_of(file):
    try:
        with storage.read(file) as content:
            return content.read()
    except FileNotFoundError:
        return None


def test_a_restore_that_fails_leaves_no_file_that_was_not_there(stored, tmp_path):
    kept, deleted = stored(b"kept"), stored(None, State.DELETED)
    members = members_of(tmp_path, **{kept.key: b"kept", deleted.key: b"deleted since"})

    def restore():
        with files.put_back(members):
            assert bytes_of(deleted) == b"deleted since"
            raise BackupError("the database is in use")

    with pytest.raises(BackupError, match="in use"):
        restore()
    assert (bytes_of(kept), bytes_of(deleted)) == (b"kept", None)


def test_a_full_disk_leaves_no_part_of_a_file(stored, tmp_path, monkeypatch):
    kept, lost, cut = stored(b"kept"), stored(None), stored(None)
    members = members_of(tmp_path, **{kept.key: b"kept", lost.key: b"lost", cut.key: b"cut"})
    put = storage.put

    def put_some(file, draft):
        if file.id == cut.id:
            draft.write_bytes(b"c")
            put(file, draft)
            raise OSError(errno.ENOSPC, "No space left on device")
        put(file, draft)

    monkeypatch.setattr(storage, "put", put_some)
    with pytest.raises(BackupError, match="can't be put back: No space left"), files.put_back(members):
        pytest.fail("a file lacks")
    assert (bytes_of(kept), bytes_of(lost), bytes_of(cut)) == (b"kept", None, None)


@pytest.mark.parametrize(
    "name",
    [
        "files/../../etc/passwd",
        "files/a/b",
        "files/" + "a" * 32,
        "home/gateway.key",
        "files/adapters/../x",
        "files/models/" + "a" * 32,
    ],
)
def test_no_member_decides_where_it_is_written(name):
    with pytest.raises(BackupError, match="neither a tenant's file nor an adapter"):
        files.check_names([name])
