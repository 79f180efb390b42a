"""Several answers of one request: each is what it would be alone, and they are told as one."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inference.config import EngineConfig
from inference.core.output import Output
from inference.core.step import RowResult, StepPlan, StepResult
from inference.errors import InvalidRequestError, OverloadedError
from inference.execution.backend import LoadedModel, Pending
from inference.local.choices import Choices
from inference.local.engine import LocalEngine
from inference.text.answer import Markers, Parsing
from inference.text.byte_tokenizer import ByteTokenizer
from inference.text.prepare import Prompt
from inference.types import (
    Finished,
    FinishReason,
    GenerationRequest,
    Kind,
    PositionLogprobs,
    Resumed,
    SamplingParams,
    TokenLogprob,
    Usage,
    seed_of,
)
from tests.inference.core.driving import Memory, next_token

EOS = 5
VOCABULARY = 300


@dataclass
class Done:
    result: StepResult | Exception

    def wait(self) -> StepResult:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@dataclass
class Runner:
    """Tokens depend on everything before them and on the seed; `computed` counts what steps computed."""

    memory: Memory = field(default_factory=lambda: Memory(4, is_seeded=True))
    computed: int = 0
    overlaps: bool = False

    def launch(self, plan: StepPlan) -> Pending:
        self.computed += plan.tokens
        try:
            return Done(self.memory.run(plan))
        except RuntimeError as error:
            return Done(error)


@dataclass
class Told:
    """What a client sees of one request."""

    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    ended: dict[int, FinishReason] = field(default_factory=dict)
    stops: dict[int, str | int | None] = field(default_factory=dict)
    started: list[int] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)


class Stand:
    """An engine with a clock, and what was told of each request."""

    def __init__(self, **config: Any) -> None:
        self.now = 0.0
        self.runner = config.pop("runner", None) or Runner()
        blocks = config.pop("kv_blocks", 40)
        model = LoadedModel(
            runner=self.runner,
            kinds=frozenset({Kind.CHAT}),
            max_context=64,
            max_input=60,
            vocab_size=VOCABULARY,
            eos_ids=frozenset({EOS}),
            kv_blocks=blocks,
            block_size=4,
            vector_width=0,
            tokenizer_folder=Path(),
        )
        spec = EngineConfig("d", "s", block_size=4, **{"max_rows": 4, "max_step_tokens": 16, **config})
        self.engine = LocalEngine(spec, model, ByteTokenizer(), clock=lambda: self.now)
        self.told: dict[str, Told] = {}
        self.begun: list[str] = []

    def submit(
        self,
        name: str,
        prompt: list[int],
        most: int,
        limit: int | None = None,
        is_final: bool = True,
        *,
        tenant: str = "t",
        **sampling: Any,
    ) -> None:
        request = GenerationRequest(name, tenant, "d", sampling=SamplingParams(**{"seed": 0, **sampling}))
        self.engine.submit(Prompt(request, most, ids=tuple(prompt)), limit, is_final)
        self.told[name] = Told()

    def step(self) -> None:
        self.listen(self.engine.step(self.begun.extend))
        (scheduler,) = self.engine.schedulers
        scheduler.check()

    def listen(self, outputs: list[Output]) -> None:
        for output in outputs:
            told = self.told[output.request_id]
            assert not told.finished, "something was said after the last word"
            if output.started is not None:
                told.started.append(output.started.cached_tokens)
            if output.text:
                assert output.index not in told.ended
                told.texts[output.index] += output.text
            if output.ended is not None:
                assert output.index not in told.ended
                told.ended[output.index] = output.ended
                told.stops[output.index] = output.stop
            assert output.usage.completion >= told.usage.completion
            told.usage = output.usage
            if output.finished is not None:
                told.finished.append(output.finished)
                assert output.finished.usage == output.usage

    def run(self, limit: int = 500) -> None:
        for _ in range(limit):
            if not self.engine.unfinished:
                self.listen(self.engine.take_outputs())
                return
            self.step()
        raise AssertionError("the engine doesn't come to an end")


def alone(prompt: list[int], most: int, first: int, index: int) -> tuple[str, bool]:
    """The text of answer `index` to a request of the seed `first`, and whether it ends by itself."""
    seed = seed_of(first, index)
    tokens = list(prompt)
    while len(tokens) - len(prompt) < most:
        token = next_token([*tokens, seed])
        if token == EOS:
            return ByteTokenizer().decode(tokens[len(prompt) :]), True
        tokens.append(token)
    return ByteTokenizer().decode(tokens[len(prompt) :]), False


def test_each_answer_is_what_it_would_be_alone_and_the_prompt_is_computed_and_counted_once() -> None:
    stand = Stand()
    prompt = list(range(10, 33))  # five blocks of four, and three tokens more
    stand.submit("r", prompt, 6, n=3, seed=7)
    stand.run()
    told = stand.told["r"]
    answers = [alone(prompt, 6, 7, i) for i in range(3)]
    assert dict(told.texts) == {i: text for i, (text, _) in enumerate(answers)}
    assert len({text for text, _ in answers}) == 3
    assert told.started == [0]
    assert stand.begun == ["r"]
    (finished,) = told.finished
    assert finished.usage.prompt == len(prompt)
    assert finished.usage.output == sum(len(text) + stops for text, stops in answers)
    # The first computed the prompt; each of the others only what doesn't fill a block.
    assert stand.runner.computed <= len(prompt) + 2 * 3 + finished.usage.output
    work = stand.engine.health().work
    assert work is not None
    assert (work.prompt_tokens, work.cached_tokens) == (len(prompt) + 2 * 3, 2 * 20)  # of each answer's prompt


def test_requests_of_neighbouring_seeds_have_no_answer_in_common() -> None:
    seeds = [seed_of(first, index) for first in range(20) for index in range(20)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert [seed_of(first, 0) for first in (0, 1, 2**64 - 1, -1)] == [0, 1, 2**64 - 1, 2**64 - 1]


@pytest.mark.parametrize("n", [1, 3])
def test_a_cancelled_request_is_unfinished_until_its_end_is_told(n: int) -> None:
    stand = Stand()
    stand.submit("r", [20, 21, 22], 6, n=n)
    stand.step()
    stand.engine.cancel("r")
    while stand.engine.unfinished:
        stand.step()
    (finished,) = stand.told["r"].finished
    assert finished.reason is FinishReason.CANCELLED


def test_a_request_without_credit_for_all_ends_exactly_at_its_allowance() -> None:
    for limit in range(1, 14):
        stand = Stand()
        stand.submit("r", [20, 21, 22], 5, limit=limit, n=3, seed=1)
        stand.run()
        (finished,) = stand.told["r"].finished
        whole = sum(len(text) + stops for text, stops in (alone([20, 21, 22], 5, 1, i) for i in range(3)))
        assert finished.usage.output == min(limit, whole)
        assert finished.reason is (FinishReason.ALLOWANCE if limit < whole else FinishReason.LENGTH)


def test_it_pauses_when_all_answers_have_their_shares_and_goes_on_when_extended() -> None:
    stand = Stand()
    stand.submit("r", [30, 31], 6, limit=1, is_final=False, n=2, seed=3)
    for _ in range(6):
        stand.step()
    assert stand.told["r"].usage.output == 1
    assert stand.engine.next_deadline() == 2.0
    stand.now = 1.9
    stand.engine.extend("r", 5, is_final=False)
    for _ in range(6):
        stand.step()
    assert stand.told["r"].usage.output == 5
    assert stand.engine.next_deadline() == 3.9
    stand.now = 3.8
    stand.engine.extend("r", 12, is_final=True)
    stand.run()
    assert dict(stand.told["r"].texts) == {i: alone([30, 31], 6, 3, i)[0] for i in range(2)}


def test_a_pause_that_nobody_ends_ends_the_request() -> None:
    stand = Stand()
    stand.submit("r", [30, 31], 6, limit=3, is_final=False, n=4, seed=3)
    for _ in range(6):
        stand.step()
    assert not stand.told["r"].finished
    stand.now = 2.0
    stand.run()
    (finished,) = stand.told["r"].finished
    assert (finished.reason, finished.usage.output) == (FinishReason.ALLOWANCE, 3)


def test_cancel_ends_all_answers_wherever_they_are() -> None:
    for steps in range(9):
        stand = Stand(max_rows=2)
        stand.submit("r", list(range(40, 60)), 5, n=4, seed=2)
        for _ in range(steps):
            stand.step()
        if stand.told["r"].finished:
            break
        stand.engine.cancel("r")
        stand.run()
        (finished,) = stand.told["r"].finished
        assert finished.reason is FinishReason.CANCELLED
        told = stand.told["r"]
        stops = list(told.ended.values()).count(FinishReason.STOP)  # the end-of-sequence tokens are counted
        assert finished.usage.output == sum(map(len, told.texts.values())) + stops
        assert not stand.engine.unfinished
    assert steps > 3


def test_a_row_that_fails_ends_its_request() -> None:
    stand = Stand()
    stand.submit("r", list(range(40, 60)), 8, n=3, seed=2)
    stand.step()
    stand.step()
    stand.runner.memory.bad.add("r/2")
    stand.run()
    (finished,) = stand.told["r"].finished
    assert finished.reason is FinishReason.ERROR
    assert finished.error is not None
    assert finished.error.code == "bad_row"


def test_answers_that_wait_take_no_place_in_the_queue_from_other_tenants() -> None:
    stand = Stand(max_rows=1, max_waiting=3, max_waiting_per_tenant=2)
    stand.submit("many", [30, 31], 3, n=5, seed=1)
    stand.step()
    (scheduler,) = stand.engine.schedulers
    assert scheduler.stats().waiting == 4
    with pytest.raises(OverloadedError, match="of this tenant"):
        stand.submit("one", [32, 33], 3)
    for tenant in "abc":
        stand.submit(tenant, [32, 33], 3, tenant=tenant)
    with pytest.raises(OverloadedError, match="3 requests are waiting"):
        stand.submit("d", [32, 33], 3, tenant="d")
    stand.run()
    assert len(stand.told["many"].ended) == 5
    assert all(stand.told[tenant].finished for tenant in "abc")


def test_a_full_queue_refuses_the_request_but_never_one_of_its_answers() -> None:
    stand = Stand(max_rows=1, max_waiting=1)
    stand.submit("a", [30, 31], 3, n=5, seed=1)
    with pytest.raises(OverloadedError):
        stand.submit("b", [30, 31], 3, n=2)
    stand.run()
    assert len(stand.told["a"].ended) == 5


@pytest.mark.parametrize("answers", [1, 2])
def test_a_request_that_may_generate_nothing_is_refused(answers: int) -> None:
    stand = Stand()
    with pytest.raises(InvalidRequestError, match="at least one token"):
        stand.submit("r", [30, 31], 3, limit=0, n=answers)
    assert not stand.engine.unfinished


def test_several_answers_are_not_resumed() -> None:
    stand = Stand()
    request = GenerationRequest(
        "r", "t", "d", sampling=SamplingParams(n=2), resumed=Resumed((1,), Usage(input=2, output=1), 0)
    )
    with pytest.raises(InvalidRequestError) as caught:
        stand.engine.submit(Prompt(request, 4, ids=(30, 31)))
    assert caught.value.param == "n"


@pytest.mark.parametrize("seed", range(25))
def test_random_requests_with_faults(seed: int) -> None:
    """Small pools, failing steps, cancels, extensions: each answer is a beginning of what it is alone."""
    chance = random.Random(seed)
    stand = Stand(kv_blocks=chance.choice([18, 40]), prefill_chunk=chance.choice([3, 16]))
    asked: dict[str, tuple[list[int], int, int, int]] = {}
    limits: dict[str, int] = {}
    for number in range(80):
        event = chance.random()
        if event < 0.25 and len(asked) < 12:
            name = f"r{number}"
            prompt = [chance.randrange(20, 60) for _ in range(chance.randrange(1, 20))]
            most, n = chance.randrange(1, 12), chance.randrange(1, 5)
            limits[name] = chance.choice([1, 3, 100])
            asked[name] = (prompt, most, n, chance.randrange(1000))
            stand.submit(name, prompt, most, limits[name], limits[name] == 100, n=n, seed=asked[name][3])
        elif event < 0.35 and asked:
            name = chance.choice(list(asked))
            limits[name] += chance.randrange(1, 20)
            stand.engine.extend(name, limits[name], chance.random() < 0.3)
        elif event < 0.4 and asked:
            stand.engine.cancel(chance.choice(list(asked)))
        elif event < 0.43:
            stand.runner.memory.poison = {next(iter(asked), "")}
            stand.step()
            stand.runner.memory.poison = set()
        stand.now += chance.choice([0.0, 0.01, 1.5])
        stand.step()
        for name, told in stand.told.items():
            assert told.usage.completion <= limits[name]
    for name in asked:
        stand.engine.extend(name, 1000, is_final=True)
    stand.run()
    for name, (prompt, most, n, first) in asked.items():
        told = stand.told[name]
        (finished,) = told.finished
        if finished.reason in {FinishReason.CANCELLED, FinishReason.ERROR}:
            assert finished.usage.prompt in range(len(prompt) + 1)
        else:
            assert finished.usage.prompt == len(prompt)
        for index, text in told.texts.items():
            whole = alone(prompt, most, first, index)[0]
            assert whole.startswith(text)
            if (told.ended.get(index) if n > 1 else finished.reason) in {FinishReason.STOP, FinishReason.LENGTH}:
                assert text == whole


def test_only_the_first_answer_may_wait_too_long() -> None:
    """The others wait for rows once the request runs: ending it then would throw away what was computed and counted."""
    stand = Stand(max_rows=1)
    for name in ("r", "late"):
        request = GenerationRequest(name, "t", "d", sampling=SamplingParams(seed=7, n=3), queue_seconds=2.0)
        stand.engine.submit(Prompt(request, 6, ids=(20, 21, 22)), None, is_final=True)
        stand.told[name] = Told()
    while stand.engine.unfinished:
        stand.step()
        stand.now += 1.0
    stand.listen(stand.engine.take_outputs())
    assert dict(stand.told["r"].texts) == {i: alone([20, 21, 22], 6, 7, i)[0] for i in range(3)}
    (finished,) = stand.told["r"].finished
    assert finished.error is None
    (late,) = stand.told["late"].finished
    assert late.error is not None
    assert (late.error.code, late.usage) == ("queue_timeout", Usage())


class Telling(Runner):
    """A runner that tells of each token a log-probability, which is the lower the greater the token is."""

    def launch(self, plan: StepPlan) -> Pending:
        result = super().launch(plan).wait()
        rows = []
        for row in result.rows:
            assert isinstance(row, RowResult)
            rows.append(row._replace(logprobs=tuple(told_of(token) for token in row.tokens)))
        return Done(StepResult(tuple(rows)))


def told_of(token: int) -> PositionLogprobs:
    return PositionLogprobs(TokenLogprob(token, -token / 100), 1, ())


def mean(text: str) -> float:
    return sum(-ord(char) / 100 for char in text) / len(text)


@pytest.mark.parametrize("parsing", [None, *(Parsing(Markers("<", end), thinks=True) for end in (">>", "3"))])
def test_the_best_has_the_highest_mean_of_all_its_tokens_also_of_those_that_are_thought(
    parsing: Parsing | None,
) -> None:
    """With ">>" each answer is nothing but thought; with "3" one of them is not, and says what is likelier."""
    answers = [alone([20, 21, 22], 8, 435, i)[0] for i in range(6)]
    assert max(answers, key=mean) == answers[2]
    assert mean(answers[5].partition("3")[2]) > mean(answers[2])
    stand = Stand(runner=Telling())
    sampling = SamplingParams(seed=435, n=1, best_of=6)
    request = GenerationRequest("r", "t", "d", sampling=sampling)
    stand.engine.submit(Prompt(request, 8, ids=(20, 21, 22), parsing=parsing))
    heard = ""
    while stand.engine.unfinished:
        for output in stand.engine.step():
            heard += output.text + "".join(told.text + told.reasoning for told in output.told)
    assert heard == answers[2]


def times(finished: Finished) -> list[float]:
    """Queue, prefill, decode, and the gaps' percentiles, in seconds."""
    milliseconds = (finished.queued_ms, finished.prefill_ms, finished.decode_ms, finished.gap_ms, finished.gap_p99_ms)
    return [round(each / 1000, 3) for each in milliseconds]


@pytest.mark.parametrize("best_of", [None, 3])
def test_the_times_are_those_of_the_whole_request(best_of: int | None) -> None:
    """It waits once, has its first token with its first answer, and lasts until its last answer ends."""
    stand = Stand(max_rows=1)
    stand.submit("before", [30, 31], 2)
    assert [len(text) + stops for text, stops in (alone([20, 21, 22], 6, 116, i) for i in range(3))] == [6, 2, 6]
    stand.submit("r", [20, 21, 22], 6, n=3 if best_of is None else 2, best_of=best_of, seed=116)
    while stand.engine.unfinished:
        stand.step()
        stand.now += 1.0
    (finished,) = stand.told["r"].finished
    # The other one takes two steps; then each step, a second after the one before, brings one token of 14.
    assert times(finished) == [2.0, 0.0, 13.0, 1.0, 1.0]


def test_all_the_time_of_a_request_that_never_ran_is_in_the_queue() -> None:
    stand = Stand(max_rows=1)
    stand.submit("before", [30, 31], 6)
    stand.submit("r", [20, 21, 22], 6, n=3)
    stand.step()
    stand.now = 3.0
    stand.engine.cancel("r")
    stand.step()
    (finished,) = stand.told["r"].finished
    assert times(finished) == [3.0, 0.0, 0.0, 0.0, 0.0]


def test_drafts_that_are_accepted_take_no_time_and_other_answers_tokens_are_no_gaps() -> None:
    choices = Choices(
        Prompt(GenerationRequest("r", "t", "d", sampling=SamplingParams(n=2)), 9), 0, 18, 1.0, is_final=True
    )
    for member, output, now in (("r", 1, 2.0), ("r", 4, 5.0), ("r/1", 1, 9.0), ("r/1", 1, 11.0), ("r/1", 2, 11.5)):
        list(choices.tell(member, Output(member, Usage(3, 0, output)), now))
    for member, output, now in (("r", 4, 12.0), ("r/1", 2, 13.0)):
        end = Finished(FinishReason.LENGTH, Usage(3, 0, output), queued_ms=250, prefill_ms=750)
        list(choices.tell(member, Output(member, end.usage, finished=end), now))
    (last,) = choices.end(13.0)
    assert last.finished is not None
    assert times(last.finished) == [0.25, 0.75, 11.0, 0.0, 3.0]  # of 3, 0, 0 and 2.5 seconds


def test_each_answer_tells_what_stopped_it_and_the_last_word_nothing() -> None:
    stand = Stand()
    assert [stops for _, stops in (alone([20, 21, 22], 6, 34, i) for i in range(2))] == [False, True]
    stand.submit("r", [20, 21, 22], 6, n=2, seed=34, stop_token_ids=(EOS,), ignore_eos=True)
    stand.run()
    (finished,) = stand.told["r"].finished
    assert stand.told["r"].ended == {0: FinishReason.LENGTH, 1: FinishReason.STOP}
    assert stand.told["r"].stops == {0: None, 1: EOS}
    assert (finished.reason, finished.stop) == (FinishReason.LENGTH, None)


@pytest.mark.parametrize("best_of", [None, 3])
def test_each_answers_own_stop_string_is_told(best_of: int | None) -> None:
    texts = [alone([20, 21, 22], 8, 31, i)[0] for i in range(3)]
    ends = tuple(dict.fromkeys(text[3:5] for text in texts))
    assert len(ends) == 3
    stand = Stand()
    stand.submit("r", [20, 21, 22], 8, n=2 if best_of else 3, best_of=best_of, seed=31, stop=ends)
    stand.run()
    told = stand.told["r"]
    assert len(told.stops) == (2 if best_of else 3)
    for index, stop in told.stops.items():
        answer = next(text for text in texts if text.startswith(told.texts[index]))
        assert stop == min(ends, key=lambda end: answer.find(end) % 1000)
    assert told.finished[0].stop is None
