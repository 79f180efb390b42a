"""Figures, tables and charts as pages show them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from base.units import MICRO
from control.screens.charts import spark, stacked
from control.screens.figures import amount, cell, duration, moment, share, show_charge, show_credits
from control.screens.tables import Button, Cell, Column, Row, State, Table


@pytest.mark.parametrize(
    ("micro", "balance", "charge"),
    [
        (0, "0", "0"),
        (1, "0.000001", "0.000001"),
        (1_234_567, "1.2345", "1.2346"),
        (19_999_999_999, "19,999.99", "20,000.00"),
        (-1_234_567, "-1.2346", "-1.2345"),
        (100 * MICRO, "100.00", "100.00"),
    ],
)
def test_balances_are_rounded_down_and_charges_up(micro, balance, charge):
    assert (show_credits(micro), show_charge(micro)) == (balance, charge)


@pytest.mark.parametrize(
    ("micro", "charge", "balance"),
    [
        (0, "0", "0"),
        (1, "0.000001", "0.000001"),
        (1_234, "0.00124", "0.00123"),
        (1_234_567, "1.24", "1.23"),
        (123_400_001, "124", "123"),
        (1_234_999_999_999, "1,235,000", "1,234,999"),
        (-1_239_000, "-1.23", "-1.24"),
    ],
)
def test_an_amount_has_three_figures_and_never_flatters(micro, charge, balance):
    assert f">{charge}<" in amount(micro)
    assert f">{balance}<" in amount(micro, is_charge=False)


def test_an_amount_is_exact_where_it_is_pointed_at():
    assert 'title="1,234.567891 credits"' in amount(1_234_567_891)


def test_a_moment_is_utc_for_who_has_no_script():
    at = datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert moment(at) == (
        '<time datetime="2024-02-03T04:05:06Z" title="2024-02-03 04:05:06 UTC">3 Feb 2024, 04:05:06 UTC</time>'
    )
    assert moment(None) == "–"


def test_durations_have_the_unit_that_suits_them():
    assert [duration(value) for value in (None, 85, 2_400, 200_000, 18_000_000, 1_036_800_000)] == [
        "–",
        "85 ms",
        "2.4 s",
        "3 min 20 s",
        "5 h",
        "12 d",
    ]


def test_csv_holds_no_formulas():
    assert cell("=1+1") == "'=1+1"
    assert cell("plain") == "plain"


def test_shares_are_never_rounded_to_nothing():
    assert [share(*counts) for counts in ((0, 0), (0, 5), (1, 5_000), (1, 2))] == ["–", "0 %", "< 0.1 %", "50.0 %"]


def chart_of(cells, buckets=("1 Mar",), **more):
    return stacked({("1 Mar", name): value for name, value in cells.items()}, buckets, show=str, **more)


def test_bars_stack_from_the_ground_and_fill_their_share():
    made = chart_of({"a": 60, "b": 20})
    (bar,) = made.bars
    assert made.names == ("a", "b")
    assert made.top == 80
    assert [(part.y, part.height) for part in bar.parts] == [(50.0, 150.0), (0.0, 50.0)]
    assert bar.texts == ("60", "20")
    assert bar.tip == "1 Mar: 80\na: 60\nb: 20"


def test_series_past_the_fifth_are_one():
    made = chart_of({f"m{number}": 100 - number for number in range(8)})
    assert made.names == ("m0", "m1", "m2", "m3", "m4", "Other")
    assert made.bars[0].texts[-1] == str(95 + 94 + 93)
    assert made.bars[0].total == sum(100 - number for number in range(8))


def test_a_given_order_is_kept_and_bars_lead_somewhere():
    made = chart_of({"refused": 90, "ok": 1}, order=("ok", "refused"), href=lambda name: f"?at={name}")
    assert made.names == ("ok", "refused")
    assert made.bars[0].href == "?at=1 Mar"


@pytest.mark.parametrize(("highest", "top"), [(0, 2), (2, 2), (3, 4), (9, 10), (61, 80), (100, 100), (101, 200)])
def test_the_axis_ends_at_a_round_value(highest, top):
    assert chart_of({"a": highest}).top == top


def test_a_sparkline_needs_two_values():
    assert spark([1]) == ""
    assert spark([0, 2]) == "0.0,27.0 100.0,1.0"


def test_a_table_writes_what_people_typed_as_text():
    columns = [Column("Name", "name"), Column("Credits", "credits"), Column("State", "state"), Column("", "buttons")]
    name = "<script>alert(1)</script>"
    values = [
        Cell(name, href="/x/?a=1&b=2", detail=name),
        5 * MICRO,
        State(name, "bad"),
        [Button("End", "/end/", name)],
    ]
    (line,) = Table("T", columns, [Row(values)]).lines
    assert "<script" not in line
    assert line.count("&lt;script&gt;") == 6
    assert 'href="/x/?a=1&amp;b=2"' in line
    assert '<td class="number" data-label="Credits">' in line
