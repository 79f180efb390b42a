"""A layer of experts in the shape of Qwen3-30B-A3B (half of its experts): ours beside transformers', in turns; medians.

    python benchmarks/engine/experts.py

For each number of tokens: milliseconds, and GB/s of the weights of those experts that have tokens.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as a worker has it

import torch
from kernels import medians
from limits import bandwidth
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from inference.execution.c_operators import COperators
from inference.execution.experts import MixtureOfExperts
from inference.kernels.library import load

EXPERTS, CHOSEN, WIDTH, INNER = 64, 8, 2048, 768
BF16 = torch.bfloat16
BYTES = {"bf16": 2.0, "W8A8": 1.0, "int4": 0.5625, "transformers": 2.0}


def main() -> None:
    library = load(Path(os.environ.get("SLUICE_HOME", tempfile.gettempdir())) / "cache" / "kernels")
    config = Qwen3MoeConfig(
        hidden_size=WIDTH,
        moe_intermediate_size=INNER,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        norm_topk_prob=True,
    )
    block = Qwen3MoeSparseMoeBlock(config).to(BF16).eval()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, parameter.shape[-1] ** -0.5)
    layers = {}
    for name, quantization in (("bf16", ""), ("W8A8", "w8a8"), ("int4", "int4")):
        operators = COperators(library, quantization)
        pairs = zip(block.experts.gate_up_proj.detach(), block.experts.down_proj.detach(), strict=True)
        products = operators.products(pairs, operators.silu_mul)
        router = operators.router(block.gate.weight.detach())
        layers[name] = MixtureOfExperts(operators, router, products, chosen=CHOSEN, is_normalised=True), products
    print(f"{library.level}, {torch.get_num_threads()} threads; memory {bandwidth():.1f} GB/s\n")
    print("| tokens | | ms | GB/s of weights |\n|---|---|---|---|")
    for tokens in (1, 8, 32, 256):
        with torch.inference_mode():
            x = torch.randn(tokens, WIDTH).to(BF16)
            numbers, _ = operators.route(router(x), CHOSEN, is_normalised=True, is_shared=False)
            used = len(numbers.unique()) * 3 * WIDTH * INNER
            calls = {name: lambda x=x, layer=layer: layer(x) for name, (layer, _) in layers.items()}
            took = medians(calls | {"transformers": lambda x=x: block(x[None])}, 1.0)
            for name, seconds in took.items():
                print(f"| {tokens} | {name} | {seconds * 1e3:.2f} | {used * BYTES[name] / seconds / 1e9:.1f} |")


if __name__ == "__main__":
    main()
