#!/usr/bin/env bash
# The whole suite: everything on SQLite, then the path of credit once more on PostgreSQL. Both run whatever the first
# one says; the exit status is 0 only if both passed.
set -u
PY=${PY:-.venv/bin/python}
TESTS=${TESTS:-tests}
status=0
# shellcheck disable=SC2086
"$PY" -m pytest -n 2 --dist loadgroup $TESTS || status=1
# shellcheck disable=SC2086
"$PY" -m pytest -n 2 --dist loadgroup --database=postgresql -m money $TESTS || status=1
exit $status
