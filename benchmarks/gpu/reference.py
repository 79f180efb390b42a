"""Plain torch in float32, on any device."""

from __future__ import annotations

import torch


def attention(  # noqa: PLR0917 - the order is the kernels'
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    begins: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    tables: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Attention of each row over the blocks of its table."""
    out = torch.zeros(query.shape[0], query.shape[1], values.shape[-1], device=query.device)
    size, group = keys.shape[2], query.shape[1] // keys.shape[1]
    for row, length in enumerate(lengths.tolist()):
        begin, end = begins[row : row + 2].tolist()
        blocks = tables[slots[row], : -(-length // size)].long()
        key, value = (
            part[blocks].float().transpose(1, 2).flatten(0, 1)[:length].repeat_interleave(group, 1)
            for part in (keys, values)
        )
        score = torch.einsum("qhd,khd->hqk", query[begin:end].float(), key) * scale
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        place = torch.arange(length, device=query.device)
        position = place[-(end - begin) :, None]
        visible = (place <= position) & ((place > position - window) if window else True)
        weight = torch.softmax(score.masked_fill(~visible, float("-inf")), -1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weight, value)
    return out


def rotated(heads: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Turn the pairs of `heads` [T, heads, width] by `rotations` [T, width / 2, 2]."""
    pairs = torch.view_as_complex(heads.float().reshape(*heads.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.view_as_complex(rotations)[:, None]).flatten(-2)
