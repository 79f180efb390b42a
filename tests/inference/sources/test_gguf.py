"""A GGUF file becomes a dense copy that runs like the model it was written from."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.errors import ModelRefusedError
from inference.sources import gguf
from inference.sources.resolve import resolve
from tests.inference.drive import Drive
from tests.inference.tiny import save_tiny
from tests.inference.work_folders import leave

PROMPTS = [[5, 9, 200, 31], list(range(3, 40))]


def write_gguf(folder: Path, path: Path, kind: str, end_of_turn: int | None = None, **extra: torch.Tensor) -> Path:
    """Write the tiny model of `folder` as GGUF, as the common writer does: names, and for llama interleaved q and k."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    writer = GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    writer.add_eos_token_id(2)
    if end_of_turn is not None:
        writer.add_eot_token_id(end_of_turn)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(["t", "1", "t1", *(f"x{i}" for i in range(3, config.vocab_size))])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["t 1"])
    for theirs, ours in gguf.KINDS[kind].settings.items() if kind in gguf.KINDS else ():
        number = getattr(config, ours)
        (writer.add_uint32 if isinstance(number, int) else writer.add_float32)(f"{kind}.{theirs}", number)
    names = gguf.KINDS[kind].names if kind in gguf.KINDS else {}
    back = {theirs: ours for ours, theirs in (gguf.MODEL_NAMES | gguf.LAYER_NAMES | dict(names)).items()}
    for name, origin in model.state_dict().items():
        tensor = origin
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = name.rpartition(".")
        if stem in back:
            target = back[stem]
        else:
            number, _, part = stem.removeprefix("model.layers.").partition(".")
            if suffix in {"gate_up_proj", "down_proj"}:  # all experts, as transformers has them in memory
                parts = {"gate": tensor.chunk(2, 1)[0], "up": tensor.chunk(2, 1)[1]}
                for key, one in parts.items() if suffix == "gate_up_proj" else [("down", tensor)]:
                    writer.add_tensor(f"blk.{number}.ffn_{key}_exps.weight", one.float().contiguous().numpy())
                continue
            target = f"blk.{number}.{back[part]}"
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(back[part])
            if kind == "llama" and heads:
                rows, columns = tensor.shape
                tensor = tensor.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)
        writer.add_tensor(f"{target}.{suffix}", tensor.float().contiguous().numpy())
    for name, tensor in extra.items():
        writer.add_tensor(name.replace("__", "."), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny(kind: str, folder: Path) -> Path:
    """A tiny model whose weights bfloat16 holds exactly, so that its dense copy is the same model."""
    save_tiny(kind, folder, **({"mlp_only_layers": []} if kind == "qwen3_moe" else {}))
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", list(gguf.KINDS))
def test_the_copy_is_the_model(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny(gguf.KINDS[kind].model_type, tmp_path / "origin")
    path = write_gguf(folder, tmp_path / "tiny.gguf", kind)
    monkeypatch.setattr(gguf, "SHARD_BYTES", 50_000)  # so that the copy has several shards
    config: dict[str, Any] = {"dtype": "float32", "kv_tokens": 256, "options": {"cache": str(tmp_path / "cache")}}
    copied = load_model(EngineConfig("a", str(path), **config), threads=1)
    original = load_model(EngineConfig("b", str(folder), **config), threads=1)
    assert copied.eos_ids == {2}
    assert (copied.tokenizer_folder / "model.safetensors.index.json").is_file()
    assert (copied.tokenizer_folder / "tokenizer.json").is_file()
    assert Drive(copied).run(PROMPTS, 12) == [
        row[: row.index(2)] if 2 in row else row for row in Drive(original).run(PROMPTS, 12)
    ]


def test_the_copy_is_made_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tiny("llama", tmp_path / "origin"), tmp_path / "tiny.gguf", "llama")
    cache = tmp_path / "cache"

    def fails(*args: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(gguf, "_write_tokenizer", fails)
        with pytest.raises(OSError, match="disk full"):
            resolve(str(path), cache)
    assert list((cache / "gguf").iterdir()) == []
    first = resolve(str(path), cache)
    assert list((cache / "gguf").iterdir()) == [first]
    monkeypatch.setattr(gguf, "convert", fails)
    assert resolve(str(path), cache) == first
    assert resolve(str(path.parent), cache) == first  # a folder with one GGUF file


def test_a_file_that_differs_in_its_middle_has_a_copy_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a model and a fine-tuning of it do, of one name, size and metadata, and with the same last tensors."""

    def convert(path: Path, folder: Path) -> None:
        (folder / "weights").write_bytes(path.read_bytes())
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(gguf, "convert", convert)
    copies = set()
    for name in ("one", "other"):
        path = tmp_path / name / "model.gguf"
        path.parent.mkdir()
        path.write_bytes(bytes(2 << 20) + name.encode().zfill(8) + bytes(2 << 20))
        copy = gguf.dense_copy(path, tmp_path / "cache")
        assert (copy / "weights").read_bytes() == path.read_bytes()
        copies.add(copy)
    assert len(copies) == 2


def test_a_file_that_is_changed_while_it_is_converted_is_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"one")

    def convert(path: Path, folder: Path) -> None:
        path.write_bytes(b"two")
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(gguf, "convert", convert)
    with pytest.raises(ModelRefusedError, match="changed while"):
        gguf.dense_copy(path, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_killed_conversions_left_goes_a_day_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"model")
    monkeypatch.setattr(gguf, "convert", lambda _, folder: (folder / "config.json").write_text("{}"))
    staying = leave(tmp_path / "cache", ".making-")
    copy = gguf.dense_copy(path, tmp_path / "cache")
    assert set((tmp_path / "cache").iterdir()) == staying | {copy}


def test_the_end_of_a_turn_ends_an_answer_too(tmp_path: Path) -> None:
    path = write_gguf(tiny("llama", tmp_path / "origin"), tmp_path / "m.gguf", "llama", end_of_turn=5)
    config = EngineConfig("test", str(path), kv_tokens=64, options={"cache": str(tmp_path / "cache")})
    assert load_model(config).eos_ids == {2, 5}


def header(*fields: bytes, tensors: int = 0) -> bytes:
    """The beginning of a GGUF file with these pairs of key and value."""
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, len(fields)) + b"".join(fields)


def field(key: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


UINT8, UINT32, TEXT, ARRAY = 0, 4, 8, 9
LLAMA = field("general.architecture", TEXT, text("llama"))
SIZED = [
    field(f"llama.{name}", UINT32, struct.pack("<I", 0))
    for name in (*gguf.SETTINGS, "attention.head_count_kv", "attention.key_length")
]
EMBEDDING = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 4, 4, 0, 0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            header(field("x", ARRAY, struct.pack("<IQ", UINT8, 2**40))),
            "1099511627776 entries of arrays, where 4194304 are the most",
        ),
        (header(field("x", ARRAY, struct.pack("<IQ", UINT8, 2**20))), "ends before"),
        (header(field("x", ARRAY, struct.pack("<IQ", ARRAY, 1) * 2000)), "can't be read as GGUF"),
        (header(field("x", TEXT, struct.pack("<Q", 2**63))), "ends before"),
        (header(field("x", 99, b"")), "99"),
        (header(LLAMA, LLAMA), "Duplicate general.architecture"),
        (header(LLAMA, tensors=2**40), "1099511627776 tensors, where"),
        (header(LLAMA, tensors=2**10), "ends before"),
        (header(LLAMA), "doesn't say hidden_size, "),
        (header(field("general.architecture", ARRAY, struct.pack("<IQ", UINT8, 1) + b"a")), "can't be read as GGUF"),
        (header(LLAMA, *SIZED), "lacks the tensor token_embd.weight"),
        (header(LLAMA, *SIZED[:-2], tensors=1) + EMBEDDING + bytes(200), "can't be read as GGUF: "),
        (header(LLAMA, *SIZED, tensors=1) + EMBEDDING, "ends before"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    """An array of 2^40 entries was read as one of 2^40 times nothing, until memory ran out."""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelRefusedError, match=re.escape(says)):
        resolve(str(path), tmp_path / "cache")
    assert list((tmp_path / "cache" / "gguf").iterdir()) == []


def test_unknown_architectures_and_tensors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny("llama", tmp_path / "origin")
    for name, words in (
        ("rope_freqs__weight", "scaled rope"),
        ("blk__0__attn_sinks__weight", "blk.0.attn_sinks.weight is unknown"),
    ):
        path = write_gguf(folder, tmp_path / f"{name}.gguf", "llama", None, **{name: torch.zeros(8)})
        with pytest.raises(ModelRefusedError, match=words):
            resolve(str(path), tmp_path / "cache")
    path = write_gguf(tiny("qwen3_moe", tmp_path / "experts"), tmp_path / "experts.gguf", "qwen3moe")
    lacking = replace(gguf.KINDS["qwen3moe"], settings={"expert_count": "experts", "x": "what"})
    monkeypatch.setitem(gguf.KINDS, "qwen3moe", lacking)
    with pytest.raises(ModelRefusedError, match="doesn't say what"):
        resolve(str(path), tmp_path / "cache")
    with pytest.raises(ModelRefusedError, match="'gpt2' is not one of"):
        resolve(str(write_gguf(folder, tmp_path / "other.gguf", "gpt2")), tmp_path / "cache")
