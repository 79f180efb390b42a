"""An archive is written whole or not at all, and read only if nothing in it is damaged, missing or uninvited."""

from __future__ import annotations

import errno
import io
import os
import random
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from operation.backup import archive, home, postgresql, sqlite
from operation.backup import files as tenants_files
from operation.backup.archive import BACKUP, BackupError, Manifest, Member, work_folder


def manifest_of(files, **changed):
    facts = {
        "format": archive.FORMAT,
        "sluice": "1.0",
        "made_at": "2026-01-01T00:00:00+00:00",
        "database": "sqlite",
        "migrations": {},
        "members": {name: archive.described(path) for name, path in files.items()},
    }
    return Manifest(**{**facts, **changed})


def write(target, *args):
    with work_folder(target.parent, BACKUP) as folder:
        return archive.write(target, *args, within=folder)


@pytest.fixture
def files(tmp_path):
    path = tmp_path / "content"
    path.write_bytes(b"rows" * 1000)
    return {"home/gateway.key": path}


def unpack(source, tmp_path):
    folder = tmp_path / "unpacked"
    folder.mkdir()
    return archive.read(source, folder)


def tampered(source, target, change):
    """Copy an archive, with `change` applied to each member: its name and content, or None to leave it out."""
    with tarfile.open(source) as before, tarfile.open(target, "w:gz") as after:
        for entry in before:
            changed = change(entry.name, before.extractfile(entry).read())
            if changed is not None:
                copy = tarfile.TarInfo(changed[0])
                copy.size = len(changed[1])
                after.addfile(copy, io.BytesIO(changed[1]))


def test_what_was_written_is_read(tmp_path, files):
    target = tmp_path / "backup.tar.gz"
    write(target, manifest_of(files), files)
    assert target.stat().st_mode & 0o777 == 0o600
    manifest, found = unpack(target, tmp_path)
    assert manifest == manifest_of(files)
    assert found["home/gateway.key"].read_bytes() == b"rows" * 1000


def test_no_backup_takes_the_place_of_another(tmp_path, files):
    target = tmp_path / "backup.tar.gz"
    target.write_text("yesterday's")
    with pytest.raises(BackupError, match="exists already"):
        write(target, manifest_of(files), files)
    assert target.read_text() == "yesterday's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar.gz", "content"]


@pytest.fixture(params=[errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def without_links(request, monkeypatch):
    """A file system such as vfat, or a network drive."""

    def refuses(self, target):
        raise OSError(request.param, os.strerror(request.param), str(target))

    monkeypatch.setattr(Path, "hardlink_to", refuses)


@pytest.mark.usefixtures("without_links")
def test_a_file_system_without_links_takes_backups(tmp_path, files):
    """They failed at their last step, with the advice to make room."""
    target = tmp_path / "backup.tar.gz"
    write(target, manifest_of(files), files)
    assert target.stat().st_mode & 0o777 == 0o600
    manifest, _ = unpack(target, tmp_path)
    assert manifest == manifest_of(files)
    whole = target.read_bytes()
    with pytest.raises(BackupError, match="exists already"):
        write(target, manifest_of(files), files)
    assert target.read_bytes() == whole


@pytest.mark.usefixtures("without_links")
def test_nothing_is_left_of_a_copy_for_which_there_is_no_room(tmp_path, files, monkeypatch):
    copied = []

    def fills(source, target, length):
        target.write(source.read(10))
        copied.append(target.name)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(archive.shutil, "copyfileobj", fills)
    target = tmp_path / "backup.tar.gz"
    with pytest.raises(BackupError, match="No space left"):
        write(target, manifest_of(files), files)
    assert copied == [str(target)]
    assert [path.name for path in tmp_path.iterdir()] == ["content"]


def test_another_fault_of_a_link_is_told(tmp_path, files, monkeypatch):
    def fails(self, target):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "hardlink_to", fails)
    with pytest.raises(BackupError, match="Input/output error"):
        write(tmp_path / "backup.tar.gz", manifest_of(files), files)
    assert [path.name for path in tmp_path.iterdir()] == ["content"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda name, content: (name, content if name.endswith(".json") else content[:-1] + b"!"), "is damaged"),
        (lambda name, content: (name, content) if name.endswith(".json") else None, "lacks home/gateway.key"),
        (lambda name, content: (name if name.endswith(".json") else "../../etc/cron.d/own", content), "doesn't name"),
        (lambda _, content: ("other", content), "no backup of Sluice"),
        (lambda name, content: (name, b"{}" if name == "manifest.json" else content), "can't be read"),
        (lambda name, content: (name, content.replace(b'"format":3', b'"format":9')), "reads formats 1 to 3"),
    ],
)
def test_a_changed_archive_is_refused(tmp_path, files, change, why):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    write(whole, manifest_of(files), files)
    tampered(whole, broken, change)
    with pytest.raises(BackupError, match=why):
        unpack(broken, tmp_path)


TENANTS = {"a" * 32 + "/" + "b" * 32: b"one\n" * 700_000, "a" * 32 + "/" + "c" * 32: b""}


def of_tenants():
    return [(name, len(content), io.BytesIO(content)) for name, content in TENANTS.items()]


def test_files_of_tenants_are_written_as_they_are_read_and_verified(tmp_path, files):
    target = tmp_path / "backup.tar.gz"
    assert write(target, manifest_of(files), files, of_tenants()) == 2
    _, found = unpack(target, tmp_path)
    assert {name: found["files/" + name].read_bytes() for name in TENANTS} == TENANTS
    assert set(found) == {"home/gateway.key", *("files/" + name for name in TENANTS)}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda name, content: (name, content + b"x" if name.startswith("files/") else content), "is damaged"),
        (lambda name, content: None if name.startswith("files/") else (name, content), "lacks files/a"),
        (lambda name, content: None if name == "files.json" else (name, content), "lacks files.json"),
        (lambda name, content: (name, b"{}" if name == "files.json" else content), "is damaged"),
        (lambda name, content: (name, b"[]" if name == "files.json" else content), "can't be read"),
        (lambda name, content: (name, content.replace(b'"format":3', b'"format":1')), "doesn't name"),
    ],
)
def test_an_archive_with_changed_files_of_tenants_is_refused(tmp_path, files, change, why):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    write(whole, manifest_of(files), files, of_tenants())
    tampered(whole, broken, change)
    with pytest.raises(BackupError, match=why):
        unpack(broken, tmp_path)


@pytest.mark.parametrize("name", ["files/é\0b", "files/" + "x" * 300])
def test_a_name_that_no_file_can_have_is_refused_as_any_other(tmp_path, files, name):
    target = tmp_path / "backup.tar.gz"
    write(target, manifest_of(files), files, [(name.removeprefix("files/"), 1, io.BytesIO(b"x"))])
    _, found = unpack(target, tmp_path)
    with pytest.raises(BackupError, match="neither a tenant's file nor an adapter"):
        tenants_files.check_names(one for one in found if one.startswith("files/"))


def test_a_member_that_is_there_twice_is_refused(tmp_path, files):
    target = tmp_path / "backup.tar.gz"
    twice = [(name, 1, io.BytesIO(b"x")) for name in ("a", "a")]
    write(target, manifest_of(files), files, twice)
    with pytest.raises(BackupError, match="'files/a' twice"):
        unpack(target, tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_member_that_is_no_file_is_refused(tmp_path, files, kind):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    write(whole, manifest_of(files), files)
    with tarfile.open(whole) as before, tarfile.open(broken, "w:gz") as after:
        manifest = before.next()
        after.addfile(manifest, before.extractfile(manifest))
        link = tarfile.TarInfo("files/" + "a" * 32 + "/" + "b" * 32)
        link.type, link.linkname = kind, "/etc/passwd"
        after.addfile(link)
    with pytest.raises(BackupError, match="doesn't name"):
        unpack(broken, tmp_path)


def test_an_archive_of_the_first_format_is_read(tmp_path, files):
    now, first = tmp_path / "now", tmp_path / "first"
    write(now, manifest_of(files, format=1), files)
    tampered(now, first, lambda name, content: None if name == "files.json" else (name, content))
    _, found = unpack(first, tmp_path)
    assert set(found) == set(files)


def test_an_archive_of_the_second_format_is_read(tmp_path, files):
    target = tmp_path / "backup.tar.gz"
    write(target, manifest_of(files, format=2), files, of_tenants())
    manifest, found = unpack(target, tmp_path)
    assert manifest.format == 2
    tenants_files.check_names(name for name in found if name.startswith("files/"))
    assert {name: found["files/" + name].read_bytes() for name in TENANTS} == TENANTS


def test_a_file_that_is_shorter_than_it_says_leaves_no_backup(tmp_path, files):
    target = tmp_path / "backup.tar.gz"
    with pytest.raises(BackupError, match="can't be written"):
        write(target, manifest_of(files), files, [("x", 10, io.BytesIO(b"short"))])
    assert [path.name for path in tmp_path.iterdir()] == ["content"]


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_cut_archive_is_refused(tmp_path, files, keep):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    write(whole, manifest_of(files), files)
    cut.write_bytes(whole.read_bytes()[:keep])
    with pytest.raises(BackupError):
        unpack(cut, tmp_path)


def test_an_archive_that_was_damaged_within_is_refused(tmp_path):
    path = tmp_path / "content"
    path.write_bytes(random.Random(0).randbytes(1 << 20))
    whole = tmp_path / "whole"
    write(whole, manifest_of({"home/gateway.key": path}), {"home/gateway.key": path})
    content = bytearray(whole.read_bytes())
    content[500_000:700_000] = b"\xff" * 200_000
    whole.write_bytes(content)
    with pytest.raises(BackupError, match="no backup, or damaged"):
        unpack(whole, tmp_path)


def test_only_files_of_a_home_are_put_into_one():
    home.check_names(["gateway.key", "node-gpu.1.key", "worker-local.record", "worker-gpu-1.record.12"])
    for name in ("../secret.key", "settings.py", "worker-local.record.lock", "worker-/../x.record", "secret.key"):
        with pytest.raises(BackupError, match="belongs into no home"):
            home.check_names([name])


def test_a_record_is_copied_again_when_it_was_rotated_meanwhile(tmp_path, monkeypatch):
    place, folder = tmp_path / "home", tmp_path / "copies"
    place.mkdir()
    folder.mkdir()
    record = place / "worker-local.record"
    record.write_text("first hour")
    copy = home.shutil.copyfile

    def copy_late(source, target):
        if not (place / "worker-local.record.1").exists():
            record.rename(place / "worker-local.record.1")
            record.write_text("second hour")
        return copy(source, target)

    monkeypatch.setattr(home.shutil, "copyfile", copy_late)
    copies = home.copied(place, folder)
    found = {name: path.read_text() for name, path in copies.items()}
    assert found == {"worker-local.record": "second hour", "worker-local.record.1": "first hour"}


def test_a_password_is_in_no_argument():
    address = postgresql._address(
        {"host": "db", "dbname": "books", "password": "hush", "options": "-c x=1", "pool": {}}
    )
    assert "hush" not in address
    assert "host=db" in address
    assert "x=1" not in address


def rows_of(database):
    with sqlite.closing(sqlite.sqlite3.connect(database)) as connection:
        return connection.execute("SELECT count(*) FROM rows").fetchone()[0]


def test_a_database_in_use_is_not_replaced(tmp_path):
    database, dumped = tmp_path / "books.sqlite3", tmp_path / "dump"
    with sqlite.closing(sqlite.sqlite3.connect(database)) as user:
        user.execute("PRAGMA journal_mode=WAL")
        user.execute("CREATE TABLE rows (id)")
        sqlite.dump(database, dumped)
        with pytest.raises(BackupError, match="in use"):
            sqlite.restore(dumped, database)
        user.execute("INSERT INTO rows VALUES (1)")
        user.commit()
    former = sqlite.restore(dumped, database)
    with (
        sqlite.closing(sqlite.sqlite3.connect(former)) as kept,
        sqlite.closing(sqlite.sqlite3.connect(database)) as now,
    ):
        assert kept.execute("SELECT count(*) FROM rows").fetchone() == (1,)
        assert now.execute("SELECT count(*) FROM rows").fetchone() == (0,)


def test_a_manifest_says_what_is_needed_to_read_it():
    manifest = manifest_of({})
    assert msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest) == manifest
    assert Member(1, "a") != Member(2, "a")


@pytest.mark.usefixtures("without_links")
def test_a_file_system_without_links_keeps_the_former_database(tmp_path):
    for name in ("dump", "database"):
        with closing(sqlite3.connect(tmp_path / name)) as made:
            made.execute(f"CREATE TABLE {name} (id)")
    before = (tmp_path / "database").read_bytes()
    former = sqlite.restore(tmp_path / "dump", tmp_path / "database")
    assert former is not None
    assert former.read_bytes() == before
    with closing(sqlite3.connect(tmp_path / "database")) as now:
        assert now.execute("SELECT count(*) FROM dump").fetchone() == (0,)
