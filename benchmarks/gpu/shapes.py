"""The models that are measured, with random weights made on the device, and the sizes of each measurement."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from transformers import LlamaConfig

from inference.architectures.decoder import Decoder
from inference.cuda.operators import TritonOperators


@dataclass(frozen=True)
class Sizes:
    """What one run measures; `context` bounds a row, `rows` a step, `step` its tokens, `longest` a row of few."""

    device: torch.device
    dtype: torch.dtype
    config: LlamaConfig
    context: int
    rows: int
    step: int
    steps: int  # decoding steps that are timed
    prompts: tuple[int, int]  # shortest and longest prompt of the mixed workload
    outputs: tuple[int, int]
    requests: int
    matrix: int
    copied: int  # numbers that the bandwidth is measured with
    longest: int


def full() -> Sizes:
    """The shape of Llama 3 8B."""
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    return Sizes(
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
        config=config,
        context=4096,
        rows=256,
        step=8192,
        steps=64,
        prompts=(64, 2048),
        outputs=(32, 256),
        requests=256,
        matrix=8192,
        copied=1 << 31,
        longest=131072,
    )


def smoke() -> Sizes:
    """The least that goes through everything."""
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return Sizes(
        device=torch.device("cpu"),
        dtype=torch.float32,
        config=config,
        context=64,
        rows=4,
        step=32,
        steps=2,
        prompts=(4, 12),
        outputs=(2, 3),
        requests=3,
        matrix=64,
        copied=1 << 10,
        longest=128,
    )


def little(sizes: Sizes) -> Sizes:
    """A smaller model and workload, for what takes plain torch's time too."""
    if sizes.device.type == "cpu":
        return sizes
    shape = {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4}
    shape |= {"num_attention_heads": 8, "num_key_value_heads": 2}
    config = LlamaConfig(**{**sizes.config.to_dict(), **shape, "head_dim": 128})
    return replace(sizes, config=config, requests=48, outputs=(32, 96))


class RandomWeights:
    """A model's tensors by name, made when they are asked for."""

    def __init__(self, config: LlamaConfig, device: torch.device) -> None:
        self._device = device
        hidden, inner = config.hidden_size, config.intermediate_size
        width = hidden // config.num_attention_heads
        stored = config.num_key_value_heads * width
        self._shapes: dict[str, tuple[int, ...]] = {
            "q_proj.weight": (hidden, hidden),
            "k_proj.weight": (stored, hidden),
            "v_proj.weight": (stored, hidden),
            "o_proj.weight": (hidden, hidden),
            "gate_proj.weight": (inner, hidden),
            "up_proj.weight": (inner, hidden),
            "down_proj.weight": (hidden, inner),
            "embed_tokens.weight": (config.vocab_size, hidden),
            "lm_head.weight": (config.vocab_size, hidden),
            "norm.weight": (hidden,),
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }

    def _shape(self, name: str) -> tuple[int, ...] | None:
        return next((shape for end, shape in self._shapes.items() if name.endswith(end)), None)

    def __contains__(self, name: str) -> bool:
        return self._shape(name) is not None

    def take(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        shape = self._shape(name)
        assert shape is not None, name
        if len(shape) == 1:
            return torch.ones(shape, dtype=dtype, device=self._device)
        return torch.randn(shape, dtype=dtype, device=self._device) * shape[1] ** -0.5

    matrix = take


class StoredWeights:
    """The tensors of another implementation's model."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return self._tensors[name].to(dtype)

    matrix = take


def decoder(sizes: Sizes, quantization: str = "", weights: StoredWeights | None = None) -> Decoder:
    """Return the model over the Triton kernels, of random weights where none are given."""
    operators = TritonOperators(sizes.device, quantization)
    with torch.inference_mode():
        return Decoder(sizes.config, weights or RandomWeights(sizes.config, sizes.device), sizes.dtype, operators)


def matrix_numbers(config: LlamaConfig) -> int:
    """How many numbers the matrices have that each token is multiplied with."""
    hidden, inner = config.hidden_size, config.intermediate_size
    stored = hidden * config.num_key_value_heads // config.num_attention_heads
    layer = hidden * (hidden + 2 * stored) + hidden * hidden + 3 * hidden * inner
    return config.num_hidden_layers * layer + config.vocab_size * hidden


def kv_numbers(config: LlamaConfig) -> int:
    """How many numbers one token has in the K/V cache."""
    width = config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * width
