"""From lines of logits to what each row gave: one line behind a row's last known token, and one behind each draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inference.core.step import Row, RowFailure, RowResult
from inference.types import PositionLogprobs


def lines_of(rows: Sequence[Row]) -> list[Row]:
    """Return each of `rows`, which sample, once for each of its lines, as the sampler takes them."""
    if not any(row.drafts for row in rows):
        return list(rows)
    return [
        row._replace(output_index=row.output_index + ahead) if ahead else row
        for row in rows
        for ahead in range(1 + row.drafts)
    ]


def answers(
    rows: Sequence[Row],
    tokens: Sequence[int],
    failures: Mapping[int, RowFailure],
    logprobs: Mapping[int, PositionLogprobs],
) -> list[RowResult | RowFailure]:
    """Return what each of `rows` gave, from the tokens, failures and log-probabilities of its lines.

    Its tokens go up to the first that isn't the draft in its place. A line that failed ends them; the row fails when
    that is its first.
    """
    results: list[RowResult | RowFailure] = []
    first = 0
    for row in rows:
        given: list[int] = []
        for draft in (*row.ids[len(row.ids) - row.drafts :], None):
            line = first + len(given)
            if line in failures:
                break
            given.append(tokens[line])
            if tokens[line] != draft:
                break
        if given:
            told = tuple([logprobs[first + i] for i in range(len(given))]) if first in logprobs else ()
            results.append(RowResult(tuple(given), told))
        else:
            results.append(failures[first])
        first += 1 + row.drafts
    return results
