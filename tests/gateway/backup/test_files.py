"""Tenants' files in a backup: every one that has its bytes, and back where the settings say."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from django_scopes import scopes_disabled

from gateway.backup import files
from gateway.backup.archive import BackupError
from gateway.files import storage
from gateway.models import Project, StoredFile, Tenant

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
    files.put_back({f"files/{whole.key}": member})
    with storage.read(whole) as content:
        assert content.read() == b"lines"
    assert (tmp_path / "files" / whole.key).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["files/../../etc/passwd", "files/a/b", "files/" + "a" * 32, "home/gateway.key"])
def test_no_member_decides_where_it_is_written(name):
    with pytest.raises(BackupError, match="no tenant's file"):
        files.check_names([name])
