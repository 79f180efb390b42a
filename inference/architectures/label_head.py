"""The head that says how well each of some labels, given as texts, suits a text. Both come from one encoder."""

from __future__ import annotations

import torch
from torch import nn


class LabelHead(nn.Module):
    """Turns an encoder's pooled vectors into probabilities of labels, and of none of them.

    A text and a label are projected and compared by their cosine, times a learned factor; how likely it is that no
    label suits is told by the text alone.
    """

    def __init__(self, width: int, projected: int) -> None:
        super().__init__()
        self.text = nn.Linear(width, projected, bias=False)
        self.label = nn.Linear(width, projected, bias=False)
        self.none = nn.Linear(width, 1)
        self.factor = nn.Parameter(torch.tensor(2.5))  # its logarithm

    def project(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the labels' vectors [labels, projected], of length 1, from pooled ones [labels, width]."""
        return nn.functional.normalize(self.label(labels), dim=-1)

    def forward(self, texts: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return logits [texts, labels + 1] of pooled texts and projected labels; the last is that none suits."""
        compared = nn.functional.normalize(self.text(texts), dim=-1) @ labels.T
        return torch.cat((compared * self.factor.exp(), self.none(texts)), dim=-1)
