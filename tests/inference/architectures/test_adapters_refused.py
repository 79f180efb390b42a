"""An adapter that can't be served right is refused with the reason; only two files are ever read, and no pickle."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.errors import InvalidRequestError, ModelRefusedError, OverloadedError
from inference.execution.adapters import Adapters
from tests.inference.adapting import save_adapter
from tests.inference.tiny import save_tiny

Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Adapters]:
    folder = save_tiny("llama", tmp_path_factory.mktemp("model"))
    settings = EngineConfig("test", str(folder), dtype="float32", kv_tokens=64, options={"tier": "reference"})
    adapters = load_model(settings, threads=1).adapters
    assert adapters is not None
    return folder, adapters


def refusal(adapters: Adapters, folder: Path) -> str:
    adapters.offer({"a": folder})
    for _ in range(2):  # the second time it is known
        with pytest.raises(InvalidRequestError) as caught:
            adapters.load("a")
        assert caught.value.code == "adapter_refused"
    assert adapters.loaded == ()
    assert str(folder) not in caught.value.message
    return caught.value.message.removeprefix("the adapter can't be served: ")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"r": 0}, "r is a whole number from 1 to 128, not 0"),
        ({"r": 129}, "r is a whole number from 1 to 128, not 129"),
        ({"r": True}, "not True"),
        ({"r": 5}, "has the shape [4, 96], where this model needs [5, 96]"),
        ({"lora_alpha": float("nan")}, "lora_alpha is a number up to a million, not nan"),
        ({"lora_alpha": "8"}, "lora_alpha is a number"),
        ({"use_rslora": "no"}, "use_rslora is true or false"),
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA', and only LORA is served"),
        ({"task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS'"),
        ({"use_dora": True}, "'use_dora' is True, which isn't supported"),
        ({"bias": "all"}, "'bias' is 'all', which isn't supported"),
        ({"lora_bias": True}, "'lora_bias' is True"),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save' is ['lm_head'], which isn't supported"),
        ({"rank_pattern": {"q_proj": 2}}, "'rank_pattern' is"),
        ({"fan_in_fan_out": True}, "'fan_in_fan_out' is True"),
        ({"init_lora_weights": "pissa"}, "'init_lora_weights' is 'pissa'"),
        ({"invented_in_2030": 1}, "'invented_in_2030' is 1, which isn't supported"),
        ({"target_modules": ["q_proj"]}, "which is not among target_modules"),
        ({"target_modules": 7}, "target_modules is a list of names or a pattern, not 7"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings(model: Any, tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    folder, adapters = model
    save_adapter(folder, tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert reason in refusal(adapters, tmp_path)


def without_b(tensors: dict[str, Any]) -> None:
    del tensors[f"{Q}.lora_B.weight"]


def without_a_target(tensors: dict[str, Any]) -> None:
    for name in [name for name in tensors if "v_proj" in name]:
        del tensors[name]


TENSORS: dict[str, Any] = {
    "has the shape [63, 4], where this model needs [64, 4]": {f"{Q}.lora_B.weight": torch.zeros(63, 4)},
    "has the shape [4], where": {f"{Q}.lora_A.weight": torch.zeros(4)},
    "is I64, where only F32, F16, BF16 are read": {f"{Q}.lora_A.weight": torch.zeros(4, 64, dtype=torch.long)},
    "has numbers that are not finite": {f"{Q}.lora_A.weight": torch.full((4, 64), torch.nan)},
    "numbers that are not finite": {f"{Q}.lora_B.weight": torch.full((64, 4), -torch.inf)},
    "is too large for torch.float32": {f"{Q}.lora_B.weight": torch.full((64, 4), 3e38)},
    "layers.3.self_attn.q_proj.lora_A.weight, which is no low-rank pair": {
        "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight": torch.zeros(4, 64)
    },
    "embed_tokens.weight, which is no": {"base_model.model.model.embed_tokens.weight": torch.zeros(211, 64)},
    "lm_head.lora_A.weight, which is no": {"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 64)},
    "lora_magnitude_vector, which is no": {f"{Q}.lora_magnitude_vector": torch.zeros(64)},
    "../../etc/passwd.lora_A.weight, which is no": {
        "base_model.model.model.layers.../../etc/passwd.lora_A.weight": torch.zeros(4, 64)
    },
    "the pair of 0.self_attn.q_proj twice": {
        f"{Q.replace('model.model.model', 'model.model.language_model.model')}.lora_A.weight": torch.zeros(4, 64)
    },
    "has only lora_A of 0.self_attn.q_proj": without_b,
    "has no pair of 'v_proj', which is among target_modules": without_a_target,
    "has no tensors": dict.clear,
}


@pytest.mark.parametrize("reason", TENSORS)
def test_tensors(model: Any, tmp_path: Path, reason: str) -> None:
    folder, adapters = model
    path = save_adapter(folder, tmp_path) / "adapter_model.safetensors"
    tensors = load_file(path)
    change = TENSORS[reason]
    change(tensors) if callable(change) else tensors.update(change)
    save_file(tensors, path)
    assert reason in refusal(adapters, tmp_path)


def test_files(model: Any, tmp_path: Path) -> None:
    folder, adapters = model
    one = save_adapter(folder, tmp_path / "one")
    weights, config = one / "adapter_model.safetensors", one / "adapter_config.json"
    whole = weights.read_bytes()

    header = json.dumps({f"{Q}.lora_A.weight": {"dtype": "F32", "shape": [4, 64], "data_offsets": [0, 10**10]}})
    weights.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    assert "can't be read" in refusal(adapters, one)  # ten gigabytes are claimed, and not there
    weights.write_bytes(struct.pack("<Q", 10**10) + b"{}")
    assert "a header of more than 4000000 bytes" in refusal(adapters, one)
    with weights.open("wb") as file:
        file.truncate(10**10)  # a sparse file
    assert "bytes are the most" not in refusal(adapters, one)
    assert "where" in refusal(adapters, one)
    weights.write_bytes(whole[: len(whole) // 2])
    assert "can't be read" in refusal(adapters, one)
    weights.write_bytes(b"")
    assert "can't be read" in refusal(adapters, one)

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    (one / "adapter_model.bin").write_bytes(pickle.dumps(Bomb()))
    weights.write_bytes(pickle.dumps(Bomb()))
    assert "header of more than" in (message := refusal(adapters, one)) or "can't be read" in message
    weights.unlink()
    assert refusal(adapters, one).startswith("the adapter has no adapter_model.safetensors (pickles")
    assert not (tmp_path / "exploded").exists()

    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(whole)
    weights.symlink_to(outside)
    assert refusal(adapters, one) == "adapter_model.safetensors is a link that leads out of the adapter's folder"
    weights.unlink()
    weights.write_bytes(whole)
    for text, reason in (
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no JSON object"),
        (" " * 10**6 + "{}", "are the most"),
    ):
        config.write_text(text)
        assert reason in refusal(adapters, one)
    config.unlink()
    assert refusal(adapters, one) == "the adapter has no adapter_config.json"
    assert refusal(adapters, tmp_path / "nowhere") == "its files were lost: delete it and make it anew"


def test_a_mended_one_is_read_when_it_is_offered_again(model: Any, tmp_path: Path) -> None:
    folder, adapters = model
    save_adapter(folder, tmp_path, use_dora=True)
    assert "use_dora" in refusal(adapters, tmp_path)
    save_adapter(folder, tmp_path, dtype=torch.bfloat16)
    with pytest.raises(InvalidRequestError):
        adapters.load("a")
    adapters.offer({"a": tmp_path})
    key = adapters.load("a")
    assert adapters.load("a") == key
    assert adapters.loaded == (key,)


def test_the_reader_refuses_with_the_reason_itself(model: Any, tmp_path: Path) -> None:
    _, adapters = model
    with pytest.raises(ModelRefusedError, match="no adapter_config"):
        adapters.read(tmp_path)


def test_want_of_memory_on_a_gpu_is_no_fault_of_the_adapter(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, adapters = model
    save_adapter(folder, tmp_path)

    def out_of_memory(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    with monkeypatch.context() as patched:
        patched.setattr("inference.architectures.adapters.AdapterReader._part", out_of_memory)
        with pytest.raises(MemoryError):
            adapters.read(tmp_path)
        adapters.offer({"a": tmp_path})
        with pytest.raises(OverloadedError):
            adapters.load("a")
    adapters.load("a")
