"""The example of docs/statements.md, byte for byte, and the file beside it by the verifier in a process of its own."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_public_key

from billing.verify import sluice_verify

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "statements.md").read_text()
EXAMPLE = ROOT / "docs" / "statement-example.jsonl"
LINES = [json.loads(line) for line in EXAMPLE.read_text().splitlines()]
BLOCKS = re.findall(r"```\n(.*?)\n```", TEXT, re.DOTALL)


def sha256(data):
    return hashlib.sha256(data).digest()


def test_the_verifier_runs_where_nothing_of_ours_is(tmp_path):
    alone = tmp_path / "sluice_verify.py"
    alone.write_bytes((ROOT / "billing" / "verify" / "sluice_verify.py").read_bytes())
    (tmp_path / "key.pem").write_text(BLOCKS[0])
    command = [sys.executable, "-I", str(alone), str(EXAMPLE), "--key", str(tmp_path / "key.pem")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "statement 7 of 2026-11 is right: 1 records and 2 transfers, 2 seals" in done.stdout
    (tmp_path / "bad.jsonl").write_text(EXAMPLE.read_text().replace('"output":150', '"output":151'))
    command[3] = "bad.jsonl"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("WRONG: bad.jsonl, line 5: this record was changed: its fields don't make its leaf\n")


def test_each_byte_of_the_example_is_as_described():
    """Computed as the document says it, with nothing of the verifier."""
    key, record_text, seal_text = BLOCKS
    rows = [line for line in LINES if "leaf" in line]
    record = next(line for line in rows if line["type"] == "record")
    words = sha256(bytes.fromhex(record["salt"]) + b"chat\0").hex()
    assert record_text.split("\n")[-1] == words
    leaves = [bytes.fromhex(line["leaf"]) for line in rows]
    assert sha256(b"\0" + record_text.encode()) == leaves[1]
    node = sha256(b"\1" + leaves[0] + leaves[1])
    root = sha256(b"\1" + node + leaves[2])
    seals = [line for line in LINES if line["type"] == "seal"]
    digest = sha256(seal_text.encode()).hex()
    assert (seals[0]["root"], seals[1]["previous"]) == (root.hex(), digest)
    for value in (*(one.hex() for one in (*leaves, node, root)), digest, seals[0]["signature"]):
        assert f"`{value}`" in TEXT
    load_pem_public_key(key.encode()).verify(bytes.fromhex(seals[0]["signature"]), seal_text.encode())


def test_the_document_lists_the_fields_in_their_order():
    for kind, names in (("record", sluice_verify.RECORD), ("transfer", sluice_verify.TRANSFER)):
        assert f"| `{kind}` | {' '.join(f'`{name}`' for name in (*names, 'words'))} |" in TEXT
    flat = " ".join(TEXT.split())
    signed = flat[flat.index("The signed text is `sluice-seal-1`") :].partition("each on a line")[0]
    assert re.findall(r"`(\w+)`", signed)[-len(sluice_verify.SEAL) + 1 :] == list(sluice_verify.SEAL[1:])
