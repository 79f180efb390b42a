"""The documents' examples, run as they are pasted against a running gateway."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from control.docs.site import PAGES
from tests.browser.conftest import Site
from tests.stack.stack import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BLOCK = re.compile(
    r'<div class="code" data-language="(\w+)"><pre tabindex="0"><code id="[^"]+">(.*?)</code></pre>', re.DOTALL
)
CALLS = re.compile(r"^curl |OpenAI\(|Anthropic\(|^const answer|^cat > requests", re.MULTILINE)
NODE = shutil.which("node")

# In this order each has what the next one needs: (operation, the variable that its answer gives, the answer's field).
ORDER = [
    ("chat_completions", "REQUEST_ID", "id"),
    ("responses", "RESPONSE_ID", "id"),
    ("files_create", "FILE_ID", "id"),
    ("batches_create", "BATCH_ID", "id"),
    ("keys_create", "KEY_ID", "id"),
]
LAST = ["batches_cancel", "files_delete", "responses_delete", "keys_end_previous", "keys_revoke"]
NEEDS_MORE = {
    "adapters_create": "an adapter's weights",
    "adapters_show": "an adapter",
    "adapters_delete": "an adapter",
    "responses_cancel": "a response in the background that still runs",
    "keys_end_previous": "a key that was rotated a moment ago",
}


@pytest.fixture(scope="module")
def keys(site: Site):
    """A key for everything and an admin key, as the environment of examples has them."""
    return site.inside.ask("tests.browser.seed:keys_of_examples")


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and code of each example of a page, as the button copies it."""
    return [(language, html.unescape(code)) for language, code in BLOCK.findall(page)]


class Runner:
    """Runs examples in one folder, with the variables that earlier answers gave."""

    def __init__(self, site: Site, folder: Path, keys: dict[str, str]) -> None:
        self.site, self.folder, self.variables = site, folder, dict(keys)

    def run(self, language: str, code: str) -> str:
        """Run it as pasted; return what it says, and fail where it fails."""
        environment = {**os.environ, **self.variables, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
        if language == "js":
            path = self.folder / "example.mjs"
            path.write_text(code)
            command = [str(NODE), str(path)]
        else:
            command = [sys.executable, "-c", code] if language == "python" else ["bash", "-ec", code]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
        assert '"error":{' not in done.stdout.replace(" ", ""), f"{code}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def runner(site: Site, tmp_path: Path, keys: dict[str, str]) -> Runner:
    return Runner(site, tmp_path, keys)


def read(site: Site, addresses: list[str]) -> dict[str, str]:
    """Return pages as the reader has them, with the site's address and the reader's models in them."""
    found: dict[str, str] = site.inside.ask("tests.browser.seed:pages_of_examples", f"127.0.0.1:{site.port}", addresses)
    return found


@pytest.fixture(scope="module")
def endpoints(site: Site) -> dict[str, list[tuple[str, str]]]:
    """The examples of each endpoint."""
    [index] = read(site, ["/docs/api/"]).values()
    names = list(dict.fromkeys(re.findall(r'href="/docs/api/(\w+)/"', index)))
    pages = read(site, [f"/docs/api/{name}/" for name in names])
    return {name: blocks(pages[f"/docs/api/{name}/"]) for name in names}


def in_order(names):
    first = [name for name, *_ in ORDER]
    middle = [name for name in names if name not in {*first, *LAST}]
    return [name for name in (*first, *middle, *LAST) if name not in NEEDS_MORE]


@pytest.mark.parametrize("language", ["sh", "js"])
def test_the_examples_of_every_endpoint_run_as_pasted(endpoints, runner, language):
    if language == "js" and NODE is None:
        pytest.skip("Node.js isn't installed")
    gives = {name: (variable, field) for name, variable, field in ORDER}
    found, ran = endpoints, 0
    for name in in_order(found):
        for code in (code for each, code in found[name] if each == language):
            said = runner.run(language, code)
            ran += 1
            if name in gives:
                variable, field = gives[name]
                told = json.loads(said)[field] if language == "sh" else re.search(rf"{field}: '([^']+)'", said)[1]
                runner.variables[variable] = told
    assert ran > 35


def test_pythons_examples_run_as_pasted(endpoints, runner):
    """All in one process, which imports the SDKs once; each has a namespace of its own."""
    found = endpoints
    programs = {name: code for name in in_order(found) for each, code in found[name] if each == "python"}
    # What an example prints names no id: the curl examples give them.
    for name, variable, field in ORDER:
        [code] = [code for each, code in found[name] if each == "sh"]
        runner.variables[variable] = json.loads(runner.run("sh", code))[field]
    first = {name for name, *_ in ORDER}
    ordered = {name: code for name, code in programs.items() if name not in LAST or name not in first}
    (runner.folder / "programs.json").write_text(json.dumps(ordered))
    runner.run(
        "python",
        "import json\nfor name, code in json.load(open('programs.json')).items():\n"
        "    try:\n        exec(compile(code, name, 'exec'), {})\n"
        "    except Exception as error:\n        raise SystemExit(f'{name}: {error!r}\\n{code}')",
    )
    assert len(ordered) > 35


def in_guides(site: Site) -> list[tuple[str, str]]:
    """The examples of the guides that call the API."""
    slugs = [f"/docs/{slug}/" for slug, (section, _) in PAGES.items() if section.theirs]
    every = [block for page in read(site, slugs).values() for block in blocks(page)]
    return [(language, code) for language, code in every if CALLS.search(code)]


def test_guides_examples_run_as_pasted(site, runner):
    ran = [runner.run(language, code) for language, code in in_guides(site) if language in ("sh", "python")]
    assert len(ran) >= 6


def test_guides_javascript_runs_where_its_sdk_is(site, runner):
    modules = sorted(ROOT.glob("var/**/node_modules/openai/package.json"))
    if NODE is None or not modules:
        pytest.skip("OpenAI's SDK for Node.js isn't installed: `make conformance CLIENTS=openai-node` installs it")
    (runner.folder / "node_modules").symlink_to(modules[0].parents[1])
    ran = [runner.run(language, code) for language, code in in_guides(site) if language == "js"]
    assert ran
