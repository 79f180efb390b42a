"""How documents and chat load on a slow phone, by Lighthouse's own simulation of one (its profile "mobile").

    npm install --prefix FOLDER lighthouse
    python benchmarks/lighthouse.py FOLDER/node_modules/.bin/lighthouse [--times 3] [PATH …]

A site with the pictures' tenants is served on a port of this machine, its owner signed in; Chromium is found by
SLUICE_CHROMIUM. The median of each figure is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PATHS = ("/docs/", "/docs/quickstart/developer/", "/docs/api/chat_completions/", "/docs/errors/", "/chat/", "/")
CATEGORIES = ("performance", "accessibility", "best-practices")
FIGURES = {
    "first paint s": ("first-contentful-paint", 1000),
    "largest paint s": ("largest-contentful-paint", 1000),
    "blocked ms": ("total-blocking-time", 1),
    "moved": ("cumulative-layout-shift", 1),
    "kB": ("total-byte-weight", 1000),
}
"""Of each column the audit, and what its value is divided by."""


def looked_at(program: str, address: str, cookie: str, folder: str) -> dict[str, Any]:
    """Return Lighthouse's report of a page."""
    headers = Path(folder) / "headers.json"
    headers.write_text(json.dumps({"Cookie": cookie}))
    command = [program, address, "--quiet", "--output=json", f"--extra-headers={headers}"]
    command += [f"--only-categories={','.join(CATEGORIES)}", "--chrome-flags=--headless --no-sandbox --disable-gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{address}: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def row(path: str, reports: list[dict[str, Any]]) -> str:
    """Return a page's row: medians of its scores and figures."""
    scores = [median(100 * one["categories"][name]["score"] for one in reports) for name in CATEGORIES]
    figures = [median(one["audits"][name]["numericValue"] / by for one in reports) for name, by in FIGURES.values()]
    cells = [*(f"{score:.0f}" for score in scores), *(f"{value:.3g}" for value in figures)]
    return f"| {path} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("paths", nargs="*", default=PATHS)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--failed", action="store_true", help="name the audits that didn't pass")
    options = parser.parse_args()
    from tests.browser.conftest import CHROMIUM, running_browser, running_site
    from tests.browser.pictures import SEED, signed_in

    os.environ["CHROME_PATH"] = CHROMIUM
    with running_site(f"{SEED}:make") as site, tempfile.TemporaryDirectory() as folder:
        with running_browser() as browser:
            jar = signed_in(site, browser, "owner").cookies()
        cookie = "; ".join(f"{one['name']}={one['value']}" for one in jar)
        print(f"| page | {' | '.join((*CATEGORIES, *FIGURES))} |\n{'|---' * (1 + len(CATEGORIES) + len(FIGURES))}|")
        for path in options.paths:
            program = str(options.program.resolve())
            reports = [looked_at(program, site.url + path, cookie, folder) for _ in range(options.times)]
            print(row(path, reports), flush=True)
            for name, audit in reports[0]["audits"].items() if options.failed else ():
                if audit["score"] is not None and audit["score"] < 0.9:
                    print(f"  {name}: {audit.get('displayValue', audit['score'])}")


if __name__ == "__main__":
    main()
