"""Make this installation's secrets, each once: ``make_secrets.py SECRETS DATABASE``. Only the standard library.

SECRETS is a folder for Sluice's own files (mode 0400), DATABASE one for the password that PostgreSQL reads as another
user. A file that is there stays as it is: delete nothing here without a backup.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

NAMES = ("secret_key", "key_hash_secret", "cache_secret", "credential_secret")


def make(path: Path, value: str, mode: int) -> str:
    """Write `value` unless the file is there, and return what is there then."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        os.fchmod(descriptor, mode)
        os.write(descriptor, value.encode())
        os.fsync(descriptor)
        path.hardlink_to(draft)
    except FileExistsError:
        pass  # made at an earlier start
    finally:
        os.close(descriptor)
        draft.unlink()
    return path.read_text()


def main(own: Path, database: Path) -> None:
    """Make every file that is missing."""
    for name in NAMES:
        make(own / name, secrets.token_urlsafe(48), 0o400)
    password = make(database / "password", secrets.token_urlsafe(32), 0o444)
    make(own / "database_url", f"postgresql://sluice:{password}@postgres:5432/sluice", 0o400)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
