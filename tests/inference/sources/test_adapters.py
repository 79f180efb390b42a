"""Headers of adapters that lie: each is refused before anything is made of what it claims."""

from __future__ import annotations

import io
import json
import struct
import sys
from typing import Any

import pytest

from inference.errors import ModelRefusedError
from inference.sources.adapters import MOST_HEADER_BYTES, AdapterConfig, check_tensors, config_of

PAIR = "base_model.model.model.layers.{}.lora_{}.weight"
CONFIG = AdapterConfig(rank=2, scale=1.0, targets=frozenset({"q_proj"}))


def tensor(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32], **changes}


def check(header: dict[str, Any] | bytes, config: AdapterConfig = CONFIG, room: int = 64) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    check_tensors(io.BytesIO(struct.pack("<Q", len(text)) + text), 8 + len(text) + room, config)


def pair(module: str = "0.self_attn.q_proj", **changes: Any) -> dict[str, Any]:
    return {
        PAIR.format(module, "A"): tensor(**changes),
        PAIR.format(module, "B"): tensor(shape=[4, 2], data_offsets=[32, 64]),
    }


def test_a_whole_pair_is_taken() -> None:
    check(pair())
    check({**pair(), "__metadata__": {"format": "pt"}})


@pytest.mark.parametrize(
    "target", ["q_proj", "self_attn.q_proj", "layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj"]
)
def test_a_target_is_the_end_of_a_modules_name_or_all_of_it(target: str) -> None:
    """PEFT writes whole names for "all-linear" where shorter ones would also be those of layers without any."""
    check(pair(), AdapterConfig(2, 1.0, frozenset({target})))
    for other in ("proj", f"x.{target}", f"{target}.x", target.replace("0", "1") if "0" in target else "k_proj"):
        with pytest.raises(ModelRefusedError, match="is not among target_modules"):
            check(pair(), AdapterConfig(2, 1.0, frozenset({other})))


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [2 * sys.maxsize, "x"]},  # multiplied, it would be as many characters
        {"shape": [2 * sys.maxsize, [0]]},
        {"shape": ["x", 2 * sys.maxsize]},
        {"shape": [True, 4]},
        {"shape": [2.0, 4]},
        {"shape": "24"},
        {"shape": {"0": 2, "1": 4}},
        {"shape": None},
        {"shape": [2]},
        {"shape": [2, 2, 2]},
        {"shape": [2, 2**62]},
        {"shape": [-2, -4]},
        {"shape": [2, 0]},
        {"data_offsets": [0, "32"]},
        {"data_offsets": [32, 0]},
        {"data_offsets": [-32, 0]},
        {"data_offsets": [2000, 2032]},
        {"data_offsets": [0, float("nan")]},
        {"data_offsets": [0]},
        {"data_offsets": None},
        {"dtype": "F64"},
        {"dtype": "I64"},
        {"dtype": ["F32"]},
        {"dtype": None},
    ],
    ids=str,
)
def test_a_tensor_that_is_none(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelRefusedError) as caught:
        check(pair(**changes))
    assert "0.self_attn.q_proj" in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("offsets", "room"),
    [
        ({"A": [0, 32], "B": [0, 32]}, 64),
        ({"A": [0, 32], "B": [0, 32]}, 32),
        ({"A": [0, 32], "B": [16, 48]}, 48),
        ({"A": [0, 32], "B": [40, 72]}, 72),
        ({"A": [8, 40], "B": [40, 72]}, 72),
        ({"A": [0, 32], "B": [32, 64]}, 10**9),
    ],
    ids=str,
)
def test_tensors_that_overlap_and_bytes_that_are_no_tensors(offsets: dict[str, list[int]], room: int) -> None:
    header = pair()
    for kind, at in offsets.items():
        header[PAIR.format("0.self_attn.q_proj", kind)]["data_offsets"] = at
    with pytest.raises(ModelRefusedError, match="overlap, or bytes that are no tensor's"):
        check(header, room=room)


@pytest.mark.parametrize("entry", [None, 7, "F32", [], {}], ids=str)
def test_an_entry_that_is_no_tensor(entry: Any) -> None:
    with pytest.raises(ModelRefusedError, match="is no matrix of F32, F16, BF16"):
        check(pair() | {PAIR.format("0.self_attn.q_proj", "A"): entry})


def test_a_rank_that_is_not_the_configs() -> None:
    with pytest.raises(ModelRefusedError, match=r"has the shape \[4, 2\], which isn't one of rank 2"):
        check(pair(shape=[4, 2]))


@pytest.mark.parametrize("length", [0, 1, MOST_HEADER_BYTES + 1, 10**8, 2**63, 2**64 - 1])
def test_a_length_of_the_header_that_is_none(length: int) -> None:
    file = io.BytesIO(struct.pack("<Q", length) + b"{}")
    with pytest.raises(ModelRefusedError, match="no safetensors file with a header of at most"):
        check_tensors(file, 10**9, CONFIG)
    assert file.tell() == 8  # nothing of it was read


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[]", b"{", b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}"], ids=len)
def test_a_header_that_is_no_object(text: bytes) -> None:
    with pytest.raises(ModelRefusedError):
        check(text)


def test_refusals_stay_short_whatever_the_names_are() -> None:
    long = "0." + "x" * 100_000 + ".q_proj"
    for header in (pair(long), {PAIR.format("0.q_proj", "A"): tensor()}, pair("y" * 150)):
        with pytest.raises(ModelRefusedError) as caught:
            check(header)
        assert len(caught.value.message) < 500


@pytest.mark.parametrize("name", ["\ud800", "layers.0.\ud800.q_proj"])
def test_names_that_are_no_text_are_refused_in_words_that_can_be_sent(name: str) -> None:
    with pytest.raises(ModelRefusedError, match="no low-rank pair") as caught:
        check(pair(name), AdapterConfig(2, 1.0, None))
    assert caught.value.message.encode()


def test_targets_that_are_many_take_one_look_at_each_module() -> None:
    """Compared each with each they would keep whoever checks them for hours."""

    class Counted(frozenset[str]):
        looks = 0

        def __iter__(self) -> Any:
            for target in super().__iter__():
                Counted.looks += 1
                yield target

    targets = Counted({"q_proj", *(f"t{number}" for number in range(1000))})
    header: dict[str, Any] = {}
    for layer in range(100):
        header |= pair(f"{layer}.self_attn.q_proj")
    with pytest.raises(ModelRefusedError, match="has no pair of 't0', which is among target_modules"):
        check(header, AdapterConfig(2, 1.0, targets))
    assert Counted.looks <= 2 * len(targets)


def test_targets_name_the_ends_of_modules() -> None:
    for targets in ({"q_proj"}, {"self_attn.q_proj"}, {"0.self_attn.q_proj"}, {"q_proj", "self_attn.q_proj"}):
        check(pair(), AdapterConfig(2, 1.0, frozenset(targets)))
    for targets in ({"proj"}, {"_proj"}, {"self_attn"}, {""}, {"q_proj", ""}, set()):
        with pytest.raises(ModelRefusedError, match="among target_modules"):
            check(pair(), AdapterConfig(2, 1.0, frozenset(targets)))


@pytest.mark.parametrize(
    "changes",
    [
        {"modules_to_save": ["embed_tokens"]},
        {"use_dora": True},
        {"rank_pattern": {"q_proj": 1}},
        {"alpha_pattern": {"q_proj": 1}},
        {"bias": "lora_only"},
        {"layer_replication": [[0, 4]]},
        {"trainable_token_indices": [1]},
        {"corda_config": {"x": 1}},
        {"r": 10**400},
        {"lora_alpha": 1e308},
        {"lora_alpha": 10**400},
        {"x" * 100_000: "y" * 100_000},
    ],
    ids=lambda changes: next(iter(changes))[:30],
)
def test_a_setting_that_is_computed_otherwise(changes: dict[str, Any]) -> None:
    given = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **changes}
    with pytest.raises(ModelRefusedError) as caught:
        config_of(json.dumps(given).encode())
    [name] = changes
    assert name[:30] in caught.value.message
    assert len(caught.value.message) < 500
