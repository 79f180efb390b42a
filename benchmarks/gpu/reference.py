"""What the kernels have to compute, in plain torch and float32, on any device."""

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
    sinks: torch.Tensor | None = None,
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
        score = score.masked_fill(~visible, float("-inf"))
        if sinks is not None:
            score = torch.cat((score, sinks.float()[:, None, None].expand(-1, score.shape[1], 1)), -1)
        weight = torch.softmax(score, -1)[..., :length]
        out[begin:end] = torch.einsum("hqk,khd->qhd", weight, value)
    return out


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return hidden / rms(hidden) · weight."""
    wide = hidden.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()


def rotated(heads: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Turn the pairs of `heads` [T, heads, width] by `rotations` [T, width / 2, 2]."""
    pairs = torch.view_as_complex(heads.float().reshape(*heads.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.view_as_complex(rotations)[:, None]).flatten(-2)
