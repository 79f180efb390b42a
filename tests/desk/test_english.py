"""Whether a text is English, or of a language that the desk doesn't read."""

from __future__ import annotations

import pytest

from desk import english
from desk.english import MOST_WORDS, is_english
from desk.training import texts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Where is my parcel?",
        "order 4711 broken",
        "Order 55 und Schmidt",
        "My name is Hans von der Au, order 5.",
        "I live in Le Mans and bought it at La Rochelle.",
        "The café in Zürich has my parcel, I think.",
        "WHERE IS MY PARCEL",
        "B4711-22",
    ],
)
def test_english_with_names_of_other_languages_is_english(text):
    assert is_english(text)


@pytest.mark.parametrize(
    "text",
    [
        "Mein Paket ist weg.",
        "WO IST MEIN PAKET",
        "Wo ist mein Paket? Order number 55, please.",
        "Je n'ai pas reçu mon colis.",
        "¿Dónde está mi pedido?",
        "Dov'è il mio ordine?",
        "Waar is mijn pakket?",
        "Não recebi a minha encomenda.",
        "Var är det? Jag har inte fått det.",
        "Nie mam przesyłki, proszę o pomoc.",
        "Где мой заказ?",
        "パソコンが壊れました。助けてください",
    ],
)
def test_other_languages_and_scripts_are_not(text):
    assert not is_english(text)


def test_all_that_the_english_corpus_says_is_english():
    kinds = ("greetings", "closings", "chatter", "anger")
    said = [one for split in ("train", "held_out") for kind in kinds for one in texts.talk(kind, split)]
    said += [one for split in ("train", "held_out") for one in texts.details(split)]
    for label in (*texts.labels(), texts.OTHER):
        said += [one for split in ("train", "held_out") for one in texts.situations(label, split)]
    assert [one for one in said if not is_english(one)] == []


def test_only_so_many_words_are_read(monkeypatch):
    read = []
    monkeypatch.setattr(english, "_COMMON", type("Seen", (), {"__contains__": lambda _, word: read.append(word)})())
    is_english("word " * 100_000)
    assert len(read) == MOST_WORDS
