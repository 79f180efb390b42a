"""The requests that the benchmark measures with share no wording with the examples, nor with those chosen by."""

import re

import pytest

from benchmarks.routing.requests import CHOICE, HELD_OUT, TASKS, requests
from routing.services.defaults import TASK_RULES

EXAMPLES = [example for *_, examples in TASK_RULES for example in examples]
WORDS = 5  # in a row, that no two may share


def runs(text):
    """Every run of so many words of a text, without its slots."""
    words = [re.findall(r"[a-z']+", part.lower()) for part in re.split(r"\{\w+\}", text)]
    return {tuple(part[at : at + WORDS]) for part in words for at in range(len(part) - WORDS + 1)}


def templates(split):
    return [" ".join(one) if isinstance(one, tuple) else one for kinds in split.values() for one in kinds]


def shared(some, others):
    known = {run for text in others for run in runs(text)}
    return [text for text in some if text in others or runs(text) & known]


@pytest.mark.parametrize("others", [EXAMPLES, templates(CHOICE)], ids=["examples", "choice"])
def test_held_out_requests_share_no_wording(others):
    assert shared(templates(HELD_OUT), others) == []


@pytest.mark.parametrize("leaked", [EXAMPLES[0], templates(CHOICE)[0], f"Please: {EXAMPLES[0]}"])
def test_a_leak_is_found(leaked):
    assert shared([*templates(HELD_OUT), leaked], EXAMPLES + templates(CHOICE)) == [leaked]


def test_requests_are_of_all_tasks_alike_and_the_same_each_time():
    made = requests(HELD_OUT, 400)
    assert made == requests(HELD_OUT, 400)
    assert {task: sum(one.task == task for one in made) for task in TASKS} == dict.fromkeys(TASKS, 80)
    assert not any(re.search(r"\{(name|day|number|ticket|article|program|language|place)\}", one.user) for one in made)
