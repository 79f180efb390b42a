"""The table of jobs: each has its test, and the documents list them all with their clicks."""

from __future__ import annotations

from pathlib import Path

from tests.browser.jobs import JOBS, lines_of_table
from tests.stack.stack import ROOT


def test_each_job_has_its_test():
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for jobs in JOBS.values() for name in jobs if f'"{name}"' not in tests] == []


def test_the_documents_list_each_job_with_its_clicks():
    text = (ROOT / "docs/benchmarks.md").read_text()
    assert "\n".join(lines_of_table()) in text
