"""Put the secrets of a restored backup where this installation reads its own: ``take_secrets.py RESTORED SECRETS``.

RESTORED is the folder that ``manage.py restore`` names, SECRETS the one that make_secrets.py made. What was taken is
gone from RESTORED; what isn't one of those files is named and left there. Only the standard library.
"""

from __future__ import annotations

import sys
from pathlib import Path

from make_secrets import NAMES, make


def take(restored: Path, own: Path) -> list[Path]:
    """Replace our secrets by the restored ones; return the files that are none of ours."""
    left = []
    for found in sorted(restored.iterdir()):
        name = found.name.removeprefix("SLUICE_").lower()
        if name not in NAMES:
            left.append(found)
            continue
        draft = own / f".{name}.restored"
        draft.unlink(missing_ok=True)
        make(draft, found.read_text(), 0o400)
        draft.replace(own / name)
        found.unlink()
        print(f"{own / name} is the backup's")
    if not left:
        restored.rmdir()
    return left


if __name__ == "__main__":
    for path in take(Path(sys.argv[1]), Path(sys.argv[2])):
        print(f"TO DO: {path} is no file of these: see docs/operations.md")
