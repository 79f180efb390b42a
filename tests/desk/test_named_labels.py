"""Labels that instructions name, and the text below them."""

from __future__ import annotations

import pytest

from desk.named_labels import labels_in, read
from desk.training import texts

NAMES = ("billing and invoices", "returns", "Account access", "other")
TICKET = "Hi team,\n\nthe options are: late, lost or stolen (which one?)\n\nThanks"


@pytest.mark.parametrize(
    "wording", [w for split in ("train", "held_out") for w in texts.instructions("classify", split)]
)
def test_every_question_of_the_desk_is_read(wording):
    asked = read(f"{wording.replace('{labels}', ', '.join(NAMES))}\n\n{TICKET}")
    assert asked == (TICKET, NAMES)


@pytest.mark.parametrize(
    ("instruction", "labels"),
    [
        ("Classify it as one of billing, shipping or other.", ("billing", "shipping", "other")),
        ("Classify the text into neutral, negative or positive.", ("neutral", "negative", "positive")),
        ("Categories:\n- billing: what was charged\n- shipping - parcels\n* `other`", ("billing", "shipping", "other")),
        ("Possible intents:\n\n1. refund\n2. cancel an order\n", ("refund", "cancel an order")),
        ("Labels:\nbilling\nshipping\n\nBe quick.", ("billing", "shipping")),
        ("Categories: billing,\n  shipping,\n  other.\nAnswer with one.", ("billing", "shipping", "other")),
        ("Answer with one of these categories: A | B | C", ("A", "B", "C")),
        ("Tags: bug/feature/question", ("bug", "feature", "question")),
        ("""Pick one of the labels 'a', "b", or `c` and nothing else.""", ("a", "b", "c")),
        ("You work for: Acme, Inc. in Rome. Topics: red; dark blue; red", ("red", "dark blue")),
        ("Given the topics a, b and c, d, tell the right one.", ("a", "b and c", "d")),
        ("Given the topics lost, return and refund, other, return one.", ("lost", "return and refund", "other")),
        ("Where does it belong: lost, found, other?", ("lost", "found", "other")),
        ("Forward to (end of contract, sign-in, other).", ("end of contract", "sign-in", "other")),
        ("Choose one of the labels red, blue, other for the main concern.", ("red", "blue", "other")),
        ("Who answers this: red, money to be returned, other?", ("red", "money to be returned", "other")),
        ("choose from wants to buy, not as ordered, other", ("wants to buy", "not as ordered", "other")),
        ("Category? red, money to be returned, other", ("red", "money to be returned", "other")),
        ("Piles: red, dark blue, and other things.", ()),
        ("I like red, other people don't, blue neither.", ()),
        ("Tell me about Python, Java, Rust, or other", ()),
        ("Write a story about a man, a woman, a dog, or other.", ()),
        ("Classify into one of these labels: bil\0ling, refund.", ()),
        ("You are a friendly assistant.", ()),
        ("Which options do I have?", ()),
        ("Pick one: tea.", ()),
        ("My order, which was late, is broken: the lid, the handle, the box.", ()),
        ("Choose well: what I say here, is a long sentence of more words than any label has, isn't it?", ()),
    ],
)
def test_lists_are_told_from_sentences(instruction, labels):
    assert labels_in(instruction) == labels


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        ("Labels: a, b\nIt is late.\nVery.", ("It is late.\nVery.", ("a", "b"))),
        ("It is late.\n\nVery.\n\nPick one: a, b.", ("It is late.\n\nVery.", ("a", "b"))),
        ("Categories:\n\n- a\n- b\n\nIt is late.", ("It is late.", ("a", "b"))),
        ("Classify the following ticket.\n\nIt is late.", ("It is late.", ())),
        ("Labels: a, b", ("", ("a", "b"))),
        ("It is late.", ("It is late.", ())),
        ("Hello,\n\nI can't choose the text of my invoice.", ("Hello,\n\nI can't choose the text of my invoice.", ())),
    ],
)
def test_text_is_told_from_its_instruction(message, asked):
    assert read(message) == asked


@pytest.mark.parametrize(
    "piece",
    ["label ", "one of ,", "label: ", "( labels ", " \n", "- \n", "or ", "label a: b, c? ", "the \t ", "a:\n\n"],
)
def test_what_is_made_to_be_slow_is_read_in_steps_that_grow_with_it(piece, monkeypatch):
    from desk import named_labels

    looked = 0
    is_label = named_labels._is_label

    def counted(text):
        nonlocal looked
        looked += 1
        return is_label(text)

    monkeypatch.setattr(named_labels, "_is_label", counted)
    read(f"{piece * 4_000}\n\n{piece * 4_000}"[:20_000])
    assert looked < 60_000
