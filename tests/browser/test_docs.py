"""The documents' examples, run as they are pasted against a running gateway."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
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
    ("budgets_create", "BUDGET_ID", "id"),
]
LAST = ["batches_cancel", "files_delete", "responses_delete", "keys_end_previous", "keys_revoke", "budgets_remove"]
NEEDS_MORE = {
    "adapters_create": "an adapter's weights",
    "adapters_show": "an adapter",
    "adapters_delete": "an adapter",
    "responses_cancel": "a response in the background that still runs",
    "budgets_create": "a scope and a window that have none yet: it is made above, once",
    "vouchers_redeem": "a voucher that nobody has redeemed",
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
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=250, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
        assert not re.search(r'"?error"?: ?\{', done.stdout), f"{code}\n{done.stdout}"
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
    """Return the endpoints whose examples can run, those that take things away last."""
    return [name for name in (*(name for name in names if name not in LAST), *LAST) if name not in NEEDS_MORE]


@pytest.fixture
def named(site, endpoints, runner) -> Iterator[Runner]:
    """The runner, with an id of each kind that examples need, as the examples in curl make them."""
    for name, variable, field in ORDER:
        [code] = [code for language, code in endpoints[name] if language == "sh"]
        runner.variables[variable] = json.loads(runner.run("sh", code))[field]
    yield runner
    site.inside.ask("tests.browser.seed:set_projects_aside", "examples")  # their names are free for the next language


def test_the_examples_in_curl_run_as_pasted(endpoints, named):
    rest = in_order(endpoints)
    for name in rest:
        for code in (code for language, code in endpoints[name] if language == "sh"):
            named.run("sh", code)
    assert len(rest) > 35


IN_ONE = {
    "python": (
        "import json\nfor name, code in json.load(open('programs.json')).items():\n"
        "    try:\n        exec(compile(code, name, 'exec'), {})\n"
        "    except Exception as error:\n        raise SystemExit(f'{name}: {error!r}\\n{code}')"
    ),
    "js": (
        'import { readFileSync, writeFileSync } from "node:fs";\n'
        'for (const [name, code] of Object.entries(JSON.parse(readFileSync("programs.json")))) {\n'
        "  writeFileSync(`${name}.mjs`, code);\n"
        "  await import(`${process.cwd()}/${name}.mjs`);\n"
        "}"
    ),
}
"""Programs that run all examples of a language in one process, which loads its libraries once."""


@pytest.mark.sweep
@pytest.mark.parametrize("language", IN_ONE)
def test_the_examples_in_other_languages_run_as_pasted(endpoints, named, language):
    if language == "js" and NODE is None:
        pytest.skip("Node.js isn't installed")
    programs = {name: code for name in in_order(endpoints) for each, code in endpoints[name] if each == language}
    (named.folder / "programs.json").write_text(json.dumps(programs))
    named.run(language, IN_ONE[language])
    assert len(programs) > 35


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
