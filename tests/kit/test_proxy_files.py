"""The files of deploy/ for proxies let in what is let in by default; `stack/cluster/test_proxies.py` runs them."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.apis.files.uploads import ROOM_FOR_FORM

ROOT = Path(__file__).resolve().parents[2]
NGINX = (ROOT / "deploy/nginx.conf").read_text()
UNITS = {"k": 1024, "m": 1024**2}


def default(name):
    [value] = re.findall(rf"^\| `{name}` \| `(\d+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE)
    return int(value)


def bound(text):
    [(number, unit)] = re.findall(r"^ *client_max_body_size +(\d+)([km]);", text, re.MULTILINE)
    return int(number) * UNITS[unit]


def test_nginx_lets_in_the_largest_body_and_the_largest_file():
    [files] = re.findall(r"location = /v1/files \{\n(.*?)\n    \}", NGINX, re.DOTALL)
    assert bound(NGINX.replace(files, "")) == default("SLUICE_MAX_BODY_BYTES")
    assert bound(files) >= default("SLUICE_MAX_FILE_BYTES") + ROOM_FOR_FORM
    assert "proxy_request_buffering off;" in files
    for name in ("SLUICE_MAX_BODY_BYTES", "SLUICE_MAX_FILE_BYTES"):
        assert f"{default(name):,} bytes" in NGINX


def test_caddy_has_no_bound_of_its_own():
    text = re.sub(r"^\s*#.*$", "", (ROOT / "deploy/Caddyfile").read_text(), flags=re.MULTILINE)
    assert "max_size" not in text
