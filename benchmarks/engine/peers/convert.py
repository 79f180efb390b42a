"""Write a model of Qwen3's or Llama's shape as peers read it: convert.py MODEL w8a8|gguf TARGET.

`w8a8` is the compressed-tensors form that vLLM reads: eight bits per channel, activations per token. `gguf` is bf16,
for llama.cpp and its quantisation, a Llama with its vocabulary and chat template; it needs the package gguf.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": INT8 | {"strategy": "channel", "dynamic": False},
            "input_activations": INT8 | {"strategy": "token", "dynamic": True},
        }
    },
}
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_w8a8(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    with safe_open(source / "model.safetensors", "pt") as file:
        for name in list(file.keys()):
            tensor = file.get_tensor(name)
            if name.endswith("_proj.weight"):
                scale = (tensor.float().abs().amax(1, keepdim=True) / 127).clamp(min=1e-8)
                tensors[f"{name}_scale"] = scale.to(torch.bfloat16)
                tensor = torch.round(tensor.float() / scale).clamp(-127, 127).to(torch.int8)
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"quantization_config": COMPRESSED}
    (folder / "config.json").write_text(json.dumps(config))


def write_gguf(source: Path, path: Path) -> None:
    import gguf

    config = json.loads((source / "config.json").read_text())
    is_llama = config["model_type"] == "llama"
    rope = config.get("rope_parameters") or {}
    heads, stored = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(str(path), "llama" if is_llama else "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(stored)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    if is_llama:
        writer.add_rope_dimension_count(width)
        _add_vocabulary(writer, source, config)
    else:
        writer.add_tokenizer_model("no_vocab")
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for layer in range(config["num_hidden_layers"]):
        names |= {f"model.layers.{layer}.{a}.weight": f"blk.{layer}.{b}.weight" for a, b in GGUF_NAMES.items()}
    with safe_open(source / "model.safetensors", "pt") as file:
        for name in set(file.keys()) & set(names):
            tensor = file.get_tensor(name)
            if tensor.dim() == 1:
                writer.add_tensor(names[name], tensor.float().numpy())
                continue
            if is_llama and name.endswith(("q_proj.weight", "k_proj.weight")):  # its rope turns neighbours
                of = heads if name.endswith("q_proj.weight") else stored
                tensor = tensor.view(of, 2, width // 2, -1).transpose(1, 2).reshape(tensor.shape)
            raw = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
            writer.add_tensor(names[name], raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any, source: Path, config: dict[str, Any]) -> None:
    """Write the byte-level BPE of SmolLM's tokenizer.json."""
    import gguf

    described = json.loads((source / "tokenizer.json").read_text())
    names = {number: token for token, number in described["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in described["added_tokens"]}
    kinds = gguf.TokenType
    size = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([special.get(number) or names.get(number, f"[{number}]") for number in size])
    writer.add_token_types([kinds.CONTROL if number in special else kinds.NORMAL for number in size])
    writer.add_token_merges(
        [pair if isinstance(pair, str) else " ".join(pair) for pair in described["model"]["merges"]]
    )
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((source / "chat_template.jinja").read_text())


if __name__ == "__main__":
    {"w8a8": write_w8a8, "gguf": write_gguf}[sys.argv[2]](Path(sys.argv[1]), Path(sys.argv[3]))
