"""The fields that an instruction names: all of them, or none where that isn't certain."""

from __future__ import annotations

import pytest

from desk.named_fields import fields_in
from desk.training import texts
from routing.services import task_examples


@pytest.mark.parametrize(
    ("instruction", "fields"),
    [
        ("Return JSON with fields order_id, amount", "order_id amount"),
        ("Return JSON with the fields order_id, amount and nothing else.", "order_id amount"),
        ("Extract the fields product, problem and since as JSON.", "product problem since"),
        ("Return a JSON object with the keys: product, defect.", "product defect"),
        ('Fill in this JSON: {"product": ..., "defect": ""}', "product defect"),
        ("Answer in JSON with these keys: sender, topic (one word), due.", "sender topic due"),
        (
            "Return the fields name, amount and due_date of this invoice as JSON, null where one is missing.",
            "name amount due_date",
        ),
        ("JSON with the fields order_id and amount, use null for missing ones", "order_id amount"),
        ("Return JSON with these fields:\n- order_id\n- amount: what was paid\n- due (a date)", "order_id amount due"),
        ("Give JSON with the keys `born`, \"amount\" and 'due'.", "born amount due"),
        ("JSON with the keys order, order, amount.", "order amount"),
        (
            "Extract order, date, amount from the ticket and return them as JSON, with null for anything missing.",
            "order date amount",
        ),
        ("Return order, date, amount as JSON.", "order date amount"),
        ("Extract order, date, amount and stop. JSON only.", ""),
        ("Collect order, date and amount. JSON only; null if a field does not occur.", "order date amount"),
        ("Data needed: order, date, amount. JSON.", "order date amount"),
        ("Wanted: order_id, amount. Format: JSON. Missing: null.", "order_id amount"),
        ("I need order, date and amount from this message. Answer with a JSON object.", "order date amount"),
        ("Scan the email for order, date, amount and answer in JSON.", "order date amount"),
        ("Detect order, date, amount in the input, output JSON.", "order date amount"),
        ("Extract order, date, amount and output JSON.", "order date amount"),
        ("Extract order_id, plan from the mail as JSON.", "order_id plan"),
        ("Return JSON with the fields plan, an order_id and the town for this mail.", "plan order_id town"),
        ('Use JSON: {"état": ..., "orderId": ...}', "état orderId"),
        ("Return JSON. Fields:\norder_id\norderId\ne-mail", "order_id orderId e-mail"),
        ("Return JSON. Fields:\n`order_id`,\n`orderId`", "order_id orderId"),
        ("Return JSON. Fields:\n* bestellnummer\n* größe", "bestellnummer größe"),
        ("Return JSON. Fields:\norder_id\nuse null if it isn't there", ""),
    ],
)
def test_fields_are_named_as_they_are_spelled(instruction, fields):
    assert fields_in(instruction) == tuple(fields.split())


def test_names_of_several_words_are_kept_whole():
    assert fields_in("Give JSON with the keys date of birth, order number.") == ("date of birth", "order number")


@pytest.mark.parametrize(
    "instruction",
    [
        "JSON with fields: name, e-mail address of the sender if given, phone",
        "JSON with the fields order number, the customer's name, date",
        "Return JSON with the fields order_id, amount from the ticket and date",
        "Required fields: a1, b1. Optional fields: c1, d1. JSON.",
        "JSON with fields name, items (array of strings), total",
        "JSON with fields name, amount (number)",
        '{"a": {"b": ""}, "c": ""}',
        '{"a": 1, "b": ""}',
        "JSON with the keys title, date, answer.",
        "JSON with these fields:\n- name\n- use null if it isn't there",
        "Return the answer as JSON.",
        "JSON with the field order_id.",
        f"JSON with the fields {', '.join(f'f{n}' for n in range(65))}.",
        "Find errors in the text, and explain them as JSON.",
        "I need eggs, milk and flour.",
        "Extract the priority as JSON. Allowed values: high, medium, low.",
        "Extract the priority as JSON: high, medium, low.",
        "Extract the people as JSON but not the following: Anna, Bert, Carla.",
        "I need the sender, order number and date. JSON.",
        "",
    ],
)
def test_what_may_be_read_in_two_ways_names_none(instruction):
    assert fields_in(instruction) == ()


def test_wordings_of_the_corpus_name_their_fields_or_none():
    names = ("order_id", "amount", "date")
    found = [fields_in(one.replace("{fields}", ", ".join(names))) for one in texts.instructions("extract", "train")]
    assert set(found) == {names, ()}
    assert found.count(names) >= 84  # of 151; 57 while only what calls them fields, or a few orders, was read


@pytest.mark.parametrize("ending", ["", " Answer in JSON."])
def test_talk_names_none(ending):
    said = [*task_examples.TALK, *task_examples.SUMMARIZE, *task_examples.CODE, *task_examples.CLASSIFY]
    said += [one for kind in ("greetings", "closings", "chatter", "anger") for one in texts.talk(kind, "train")]
    said += [one for label in (*texts.labels(), texts.OTHER) for one in texts.situations(label, "train")]
    said += texts.details("train")
    assert [one for one in said if fields_in(one + ending)] == []
