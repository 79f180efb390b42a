"""Conversion of a GGUF file to a folder in transformers' layout: config, bfloat16 safetensors and tokenizer.

transformers reads GGUF too, but keeps the weights packed and can't save them; the converted folder is read as fast as
any other checkpoint and runs on our own decoder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inference.errors import ModelRefusedError
from inference.work_folders import forget_work_folders, require_room

FORMAT = 3  # part of the copy's name: a change of what we write makes new copies
SHARD_BYTES = 2 * 1024**3
_WORK = ".making-"
MOST_FIELDS = 2**17  # and as many tensors
MOST_ENTRIES = 2**22  # of all the header's arrays together: a vocabulary, its kinds, scores and merges

MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EXPERT_NAMES = {  # of one tensor for all experts; "{}" is the number of one
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}


SETTINGS = {  # that each file has, by their name in the metadata, and in the config
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A GGUF architecture: its class and type in transformers, and what it has otherwise than Llama.

    `names` are layers' tensors under other names; `settings` are those of the config that the metadata have, by their
    name there, and `fixed` those that the architecture stands for. With `is_permuted` the file's writer interleaved
    each head's q and k rows.
    """

    architecture: str
    model_type: str
    is_permuted: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)


KINDS = {
    "llama": Kind("LlamaForCausalLM", "llama", is_permuted=True),
    "qwen2": Kind("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Kind("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": Kind(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        names={"ffn_gate_inp": "mlp.gate"},
        settings={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        fixed={"norm_topk_prob": True},
    ),
}


def dense_copy(path: Path, cache: Path, report: Callable[[str], None] = lambda _: None) -> Path:
    """Return the folder under `cache` that holds the dense copy of the GGUF file at `path`, making it when missing.

    The folder appears complete or not at all; what killed conversions left there a day ago goes. `report` is called
    before a conversion. Raise ModelRefusedError for a file that isn't GGUF or is changed meanwhile, and for an unknown
    architecture or tensor.
    """
    forget_work_folders(cache, _WORK)
    digest = _digest(path)
    target = cache / f"{path.stem}-{digest}"
    if (target / "config.json").is_file():
        return target
    report(f"converting {path.name}, once")
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=_WORK, dir=cache))
    try:
        convert(path, work)
        if _digest(path) != digest:
            raise ModelRefusedError(f"{path} was changed while it was converted: load it again")
        try:
            work.rename(target)
        except OSError:
            if not (target / "config.json").is_file():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _digest(path: Path) -> str:
    """A digest of the whole file: models may differ in any part of it, as one and a fine-tuning of it do in the middle.

    It reads all of the file at each start, 1 to 2 GB in a second where the disk is as fast: less than to read the copy,
    which is several times as large.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(f":{FORMAT}".encode())
    return digest.hexdigest()[:32]


def convert(path: Path, folder: Path) -> None:
    """Write the dense copy of the GGUF file at `path` into the existing `folder`, its config.json last."""
    with _reading(path):
        reader = _reader(path)
        config, ends = _config(path, reader), _ends(reader)
    require_room(folder, sum(2 * int(tensor.n_elements) for tensor in reader.tensors), f"the dense copy of {path.name}")
    _write_weights(_tensors(path, reader, config), folder)
    _write_tokenizer(path, folder)
    generation = {"bos_token_id": config.get("bos_token_id"), "eos_token_id": ends}
    (folder / "generation_config.json").write_text(
        json.dumps({name: value for name, value in generation.items() if value not in (None, [])})
    )
    (folder / "config.json").write_text(json.dumps(config, indent=1))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Refuse the file at `path` for whatever is raised in the block, where nothing but the file is read."""
    try:
        yield
    except ModelRefusedError:
        raise
    except Exception as error:  # a damaged header leads the reader anywhere
        raise ModelRefusedError(f"{path} can't be read as GGUF: {str(error) or type(error).__name__}") from error


def _reader(path: Path) -> Any:
    """Open the GGUF file at `path`; raise ValueError for a header that leads beyond it, or has too much to be kept.

    The library's reader takes what lies behind a file's end for nothing, as many times as the header says.
    """
    from gguf import GGUFReader, GGUFValueType

    class BoundedReader(GGUFReader):  # type: ignore[misc]  # it has no types
        entries = 0

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise ValueError("it ends before what its header says is in it")
            return super()._get(offset, dtype, count, override_order)

        def _build_fields(self, offs: int, count: int) -> Any:
            _check_count("fields", count, MOST_FIELDS)
            return super()._build_fields(offs, count)

        def _build_tensor_info(self, offs: int, count: int) -> Any:
            _check_count("tensors", count, MOST_FIELDS)
            return super()._build_tensor_info(offs, count)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == GGUFValueType.ARRAY:
                self.entries += int(self._get(orig_offs + 4, np.uint64)[0])  # behind the type of an entry
                _check_count("entries of arrays", self.entries, MOST_ENTRIES)
            return super()._get_field_parts(orig_offs, raw_type)

    return BoundedReader(path)


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise ValueError(f"its header has {count} {what}, where {most} are the most")


def _config(path: Path, reader: Any) -> dict[str, Any]:
    """The file's metadata as a transformers config."""

    def value(name: str, default: Any = None) -> Any:
        found = reader.fields.get(name)
        return default if found is None else found.contents()

    kind = value("general.architecture")
    if kind not in KINDS:
        raise ModelRefusedError(f"{path}: GGUF architecture {kind!r} is not one of {', '.join(KINDS)}")
    names = {tensor.name: tensor for tensor in reader.tensors}
    scaled = value(f"{kind}.rope.scaling.type", "none") != "none" or value(f"{kind}.rope.scale_linear", 1.0) != 1.0
    if scaled or "rope_freqs.weight" in names:
        raise ModelRefusedError(f"{path}: GGUF files with scaled rope are not supported; use the original checkpoint")
    if value(f"{kind}.expert_count", 0) and "expert_count" not in KINDS[kind].settings:
        raise ModelRefusedError(
            f"{path}: {kind} GGUF files with experts are not supported; use the original checkpoint"
        )
    settings = {ours: value(f"{kind}.{theirs}") for theirs, ours in {**SETTINGS, **KINDS[kind].settings}.items()}
    if missing := [name for name, given in settings.items() if given is None]:
        raise ModelRefusedError(f"{path}: the GGUF file doesn't say {', '.join(missing)}; use the original checkpoint")
    if "token_embd.weight" not in names:
        raise ModelRefusedError(f"{path}: the GGUF file lacks the tensor token_embd.weight")
    heads, width = settings["num_attention_heads"], settings["hidden_size"]
    config = {
        "architectures": [KINDS[kind].architecture],
        "model_type": KINDS[kind].model_type,
        "vocab_size": int(names["token_embd.weight"].shape[-1]),
        "num_key_value_heads": value(f"{kind}.attention.head_count_kv", heads),
        "head_dim": value(f"{kind}.attention.key_length", width // heads),
        "rope_parameters": {"rope_type": "default", "rope_theta": value(f"{kind}.rope.freq_base", 10_000.0)},
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "torch_dtype": "bfloat16",
        **KINDS[kind].fixed,
        **settings,
    }
    for ours, theirs in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        if (number := value(f"tokenizer.ggml.{theirs}_token_id")) is not None:
            config[ours] = number
    return config


def _ends(reader: Any) -> list[int]:
    """Every id that ends an answer: end of text, of turn, of message."""
    named = (reader.fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return sorted({int(field.contents()) for field in named if field is not None})


def _tensors(path: Path, reader: Any, config: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The file's tensors under transformers' names, dense, bfloat16, in transformers' order of rows."""
    from gguf.quants import dequantize

    kind = next(kind for kind in KINDS.values() if kind.architecture == config["architectures"][0])
    names = {**LAYER_NAMES, **kind.names, **EXPERT_NAMES}
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        name, _, suffix = tensor.name.rpartition(".")
        if name in MODEL_NAMES:
            target = MODEL_NAMES[name]
        else:
            block, _, part = name.removeprefix("blk.").partition(".")
            if part not in names:
                raise ModelRefusedError(f"{path}: GGUF tensor {tensor.name} is unknown to us")
            target = f"model.layers.{block}.{names[part]}"
            name = part
        with _reading(path):
            dense = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
            if name in heads and kind.is_permuted:
                dense = _half_split(dense, heads[name])
        if name in EXPERT_NAMES:
            yield from ((f"{target.format(i)}.{suffix}", one.to(torch.bfloat16)) for i, one in enumerate(dense))
        else:
            yield f"{target}.{suffix}", dense.to(torch.bfloat16)


def _half_split(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the interleaving of each head's rows: pairs side by side become halves apart."""
    rest = tensor.shape[1:]
    return tensor.view(heads, -1, 2, *rest).transpose(1, 2).reshape(-1, *rest)


def _write_weights(tensors: Iterator[tuple[str, torch.Tensor]], folder: Path) -> None:
    """Write the tensors as one file, or as shards with an index when they are large."""
    from safetensors.torch import save_file

    shards: list[list[str]] = []
    pending: dict[str, torch.Tensor] = {}

    def flush() -> None:
        save_file(pending, folder / f"part-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(pending))
        pending.clear()

    size = 0
    for name, tensor in tensors:
        if pending and size + tensor.nbytes > SHARD_BYTES:
            flush()
            size = 0
        pending[name] = tensor.contiguous()
        size += tensor.nbytes
    flush()
    if len(shards) == 1:
        (folder / "part-0").rename(folder / "model.safetensors")
        return
    files = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for i, file in enumerate(files):
        (folder / f"part-{i}").rename(folder / file)
    weight_map = {name: file for names, file in zip(shards, files, strict=True) for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _write_tokenizer(path: Path, folder: Path) -> None:
    """Save the tokenizer and chat template that the file carries."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the tokenizers library raises bare exceptions for what it can't build, or panics
        raise ModelRefusedError(f"{path}: its tokenizer can't be read: {error}") from error
    tokenizer.save_pretrained(folder)
