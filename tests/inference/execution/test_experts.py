"""A mixture of experts on every tier: as its plain formula, however skewed the routing, and each token as alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu

from inference.architectures.load import kernel_folder
from inference.architectures.tiers import choose
from inference.cuda.operators import TritonOperators
from inference.execution.experts import GatedFeedForward, MixtureOfExperts
from inference.execution.operators import CPU, Operators, TorchOperators
from inference.execution.packed_operators import PackedOperators
from tests.inference.sweeps import first

EXPERTS, WIDTH, INNER = 6, 64, 96


def c_operators(quantization: str = "") -> Operators:
    operators = choose(torch.float32, kernel_folder(), quantization="")
    if not operators.tier.startswith("C kernels"):
        pytest.skip("no C kernels here")
    return choose(torch.float32, kernel_folder(), quantization=quantization)


TIERS = {
    "reference": TorchOperators,
    "packed": PackedOperators,
    "c": c_operators,
    "c-w8a8": lambda: c_operators("w8a8"),
    "c-int4": lambda: c_operators("int4"),
    "triton": lambda: TritonOperators(CPU),
    "triton-w8a8": lambda: TritonOperators(CPU, "w8a8"),
    "triton-fp8": lambda: TritonOperators(CPU, "fp8"),
}
TOLERANCE = {"w8a8": 0.04, "fp8": 0.12, "int4": 0.2}  # of the results' spread


class Weights:
    """Random experts; the tokens' first number is 1, so that the router's first column is its bias."""

    def __init__(self, bias: list[float]) -> None:
        torch.manual_seed(3)
        self.router = torch.randn(EXPERTS + 1, WIDTH) / 8
        self.router[:EXPERTS, 0] = torch.tensor(bias)
        self.both = torch.randn(EXPERTS + 1, 2 * INNER, WIDTH) / 8  # the last is shared
        self.down = torch.randn(EXPERTS + 1, WIDTH, INNER) / 10

    def plain(self, x: torch.Tensor, chosen: int, *, is_normalised: bool) -> tuple[torch.Tensor, list[int]]:
        """Return the sum of all experts' results by their weights, most of which are 0, and each expert's tokens."""
        logits = x @ self.router.T
        weights = torch.softmax(logits[:, :EXPERTS], -1)
        dropped = weights.argsort(-1, descending=True)[:, chosen:]
        weights = weights.scatter(1, dropped, 0.0)
        if is_normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        counts = (weights > 0).sum(0).tolist()
        weights = torch.cat((weights, torch.sigmoid(logits[:, EXPERTS:])), 1)
        gate, up = torch.einsum("th,eih->eti", x, self.both).chunk(2, -1)
        rows = torch.einsum("eti,ehi->eth", silu(gate) * up, self.down)
        return torch.einsum("te,eth->th", weights, rows), counts

    def layer(self, operators: Operators, chosen: int, *, is_normalised: bool) -> MixtureOfExperts:
        def network(number: int) -> GatedFeedForward:
            pair = operators.linear(self.both[number]), operators.linear(self.down[number])
            return GatedFeedForward(*pair, operators.silu_mul)

        pairs = zip(self.both[:EXPERTS], self.down[:EXPERTS], strict=True)
        return MixtureOfExperts(
            operators,
            operators.router(self.router),
            operators.products(pairs, operators.silu_mul),
            chosen=chosen,
            is_normalised=is_normalised,
            shared=network(EXPERTS),
        )


def tokens(count: int) -> torch.Tensor:
    x = torch.randn(count, WIDTH)
    x[:, 0] = 1
    return x


ROUTINGS = {
    "two of three": ([0.0, 40.0, 0.0, 30.0, -40.0, 0.0], 3, False),  # two experts have all, one none
    "even": ([0.0] * EXPERTS, 2, True),
    "all to one": ([0.0, 40.0, 0.0, 0.0, -40.0, 0.0], 1, False),
    "all to all": ([0.0] * EXPERTS, EXPERTS, True),
}
CASES = [(tier, routing) for tier in TIERS for routing in ROUTINGS]


@pytest.mark.parametrize(
    ("tier", "routing"), first(CASES, of=lambda case: case[0] if case[0].startswith("triton-") else case)
)
def test_as_the_plain_formula(tier: str, routing: str) -> None:
    bias, chosen, is_normalised = ROUTINGS[routing]
    weights = Weights(bias)
    layer = weights.layer(TIERS[tier](), chosen, is_normalised=is_normalised)
    for count in (1, 5) if tier.startswith("triton") else (1, 7, 40):  # the interpreter takes its time
        x, residual = tokens(count), torch.randn(count, WIDTH)
        expected, counts = weights.plain(x, chosen, is_normalised=is_normalised)
        if max(bias):
            assert counts[1] == count
            assert counts[4] == 0
        with torch.inference_mode():
            for given in (residual,) if count == 5 else (None, residual):
                error = layer(x, given) - (expected if given is None else expected + given)
                assert float(error.norm() / expected.norm()) < TOLERANCE.get(tier.partition("-")[2], 1e-5)


@pytest.mark.parametrize("tier", ["c", "c-w8a8", "c-int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_has_the_same_bits_in_any_batch(tier: str, dtype: torch.dtype) -> None:
    weights = Weights([0.0, 0.0, 3.0, 0.0, 0.0, 1.0])
    for name in ("router", "both", "down"):
        setattr(weights, name, getattr(weights, name).to(dtype))
    layer = weights.layer(TIERS[tier](), 3, is_normalised=False)
    x, residual = tokens(60).to(dtype), torch.randn(60, WIDTH).to(dtype)
    with torch.inference_mode():
        alone = torch.cat([layer(x[i : i + 1], residual[i : i + 1]) for i in range(60)])
        for count in (2, 3, 17, 32, 60):
            begin = (7 * count) % (61 - count)
            part = slice(begin, begin + count)
            assert torch.equal(layer(x[part], residual[part]), alone[part])
        shuffled = torch.randperm(60)
        assert torch.equal(layer(x[shuffled], residual[shuffled]), alone[shuffled])
