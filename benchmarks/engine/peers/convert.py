"""Write a model of Qwen3's shape as peers read it: convert.py MODEL w8a8 FOLDER | convert.py MODEL gguf FILE.

`w8a8` is the compressed-tensors form that vLLM reads: eight bits per channel, activations per token. `gguf` is bf16
without a vocabulary, for llama.cpp and its own quantisation; it needs the package gguf.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

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
    rope = config.get("rope_parameters") or {}
    writer = gguf.GGUFWriter(str(path), "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for layer in range(config["num_hidden_layers"]):
        names |= {f"model.layers.{layer}.{a}.weight": f"blk.{layer}.{b}.weight" for a, b in GGUF_NAMES.items()}
    with safe_open(source / "model.safetensors", "pt") as file:
        for name in set(file.keys()) & set(names):
            tensor = file.get_tensor(name)
            if tensor.dim() == 1:
                writer.add_tensor(names[name], tensor.float().numpy())
            else:
                raw = tensor.contiguous().view(torch.uint8).numpy()
                writer.add_tensor(names[name], raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    {"w8a8": write_w8a8, "gguf": write_gguf}[sys.argv[2]](Path(sys.argv[1]), Path(sys.argv[3]))
