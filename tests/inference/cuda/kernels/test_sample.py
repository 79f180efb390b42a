"""The sampling kernels against the CPU's sampler, and their noise bit by bit."""

from __future__ import annotations

import itertools

import pytest
import torch
import triton
import triton.language as tl

from inference.cuda.kernels import noise
from inference.cuda.kernels.sample import sample
from inference.sampling.filters import surviving
from inference.sampling.rng import exponentials
from tests.inference.sampling.reference import noise_key

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the infinities that a mask makes
VOCABULARY = 5000


@triton.jit
def _noise(key, out, count: tl.constexpr):
    token = tl.arange(0, count)
    tl.store(out + token, noise.exponentials(tl.load(key), token))


def drawn(logits: torch.Tensor, allowed: torch.Tensor | None = None, **options) -> list[int]:
    rows = logits.shape[0]
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0}
    values = {name: options.get(name, default) for name, default in defaults.items()}
    tokens = torch.zeros(rows, dtype=torch.long)
    sample(
        logits,
        tokens,
        temperature=torch.full((rows,), float(values["temperature"])),
        top_k=torch.full((rows,), values["top_k"], dtype=torch.int32),
        top_p=torch.full((rows,), float(values["top_p"])),
        min_p=torch.full((rows,), float(values["min_p"])),
        keys=torch.tensor([noise_key(values["seed"], i) for i in range(rows)]),
        allowed=allowed,
    )
    return tokens.tolist()


def expected(logits: torch.Tensor, **options) -> list[int]:
    """The same draw by sorting, as the CPU does it."""
    temperature = options.get("temperature", 1.0)
    if temperature == 0:
        return logits.float().argmax(1).tolist()
    values, ids = torch.sort(logits.float(), stable=True, dim=1, descending=True)
    scaled = (values - values[:, :1]) / temperature
    column = {
        name: torch.full((logits.shape[0], 1), options.get(name, off))
        for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))
    }
    mask, _ = surviving(
        scaled, torch.logsumexp(scaled, 1, keepdim=True), column["top_k"], column["top_p"], column["min_p"]
    )
    keys = torch.tensor([[noise_key(options.get("seed", 0), i)] for i in range(logits.shape[0])])
    race = (scaled - exponentials(keys, ids).log()).masked_fill(~mask, float("-inf"))
    return ids.gather(1, race.argmax(1, keepdim=True))[:, 0].tolist()


def test_the_noise_is_the_cpus() -> None:
    out = torch.empty(4096)
    for seed in (0, 1, 2**63 + 5):
        key = noise_key(seed, 3)
        _noise[(1,)](torch.tensor([key]), out, count=4096)
        torch.testing.assert_close(
            out, exponentials(torch.tensor([[key]]), torch.arange(4096)[None])[0], rtol=3e-6, atol=0
        )


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {},
        {"temperature": 0.7},
        {"top_k": 1},
        {"top_k": 50, "temperature": 1.5},
        {"top_p": 0.9},
        {"top_p": 1e-6},
        {"min_p": 0.1},
        {"top_k": 20, "top_p": 0.8, "temperature": 1.3},
        {"top_k": 300, "top_p": 0.95, "min_p": 0.01, "temperature": 2.0},
        {"top_k": VOCABULARY + 1, "top_p": 0.5},
    ],
    ids=str,
)
def test_a_draw_is_the_cpus(options) -> None:
    torch.manual_seed(7)
    flat, peaked = torch.randn(2, VOCABULARY), torch.randn(2, VOCABULARY) * 8
    logits = torch.cat((flat, peaked))
    assert drawn(logits, **options) == expected(logits, **options)


def test_equal_logits_are_taken_by_their_ids() -> None:
    """16-bit logits are often equal: top-k keeps the first of them, as the CPU's stable sort does."""
    torch.manual_seed(3)
    logits = (torch.randn(3, VOCABULARY) * 2).round()
    for options in ({"temperature": 0.0}, {"top_k": 7}, {"top_k": 30, "top_p": 0.7}, {"top_p": 0.3}):
        assert drawn(logits, **options) == expected(logits, **options)


def test_only_allowed_tokens_are_taken() -> None:
    torch.manual_seed(5)
    logits = torch.randn(2, 100) * 4
    words = torch.zeros(2, 3, dtype=torch.int32)  # 96 bits: the tokens beyond them are not allowed
    tokens = [(3, 40, 95), (31, 63)]
    for row, token in itertools.chain(*([(row, t) for t in some] for row, some in enumerate(tokens))):
        words[row, token // 32] |= torch.tensor(1 << token % 32).to(torch.int32)
    masked = torch.full_like(logits, float("-inf"))
    for row, some in enumerate(tokens):
        masked[row, list(some)] = logits[row, list(some)]
    for options in ({"temperature": 0.0}, {}, {"top_p": 0.6}, {"top_k": 2, "top_p": 0.9}):
        assert drawn(logits, words, **options) == expected(masked, **options)


def test_rows_that_are_not_finite_say_so_and_others_go_on() -> None:
    logits = torch.zeros(5, VOCABULARY)
    logits[0, 4321] = float("nan")
    logits[1, 7] = float("inf")
    logits[2] = float("-inf")
    logits[3, 9] = 100.0
    logits[4, 9] = 100.0
    logits[4, 10] = float("-inf")
    assert drawn(logits, top_p=0.9) == [-1, -1, -1, 9, 9]
    assert drawn(logits, temperature=0.0) == [-1, -1, -1, 9, 9]


def test_a_row_is_drawn_alike_in_any_batch_and_layout() -> None:
    torch.manual_seed(1)
    wide = torch.randn(3, VOCABULARY + 8).half()
    logits = wide[:, :VOCABULARY]
    together = drawn(logits, top_p=0.9)
    assert drawn(logits[:1].contiguous(), top_p=0.9) == together[:1]
