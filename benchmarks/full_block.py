"""The recall block as it is usually written: everything at every position.

What lib.transformer.block computes at the last position only; tests and benchmarks compare.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lib.numerics import unit_rows
from lib.transformer.block import LOGIT_SCALE, RecallBlock
from lib.transformer.recall import Sequences
from lib.transformer.rope import rotate


def all_positions(block: RecallBlock, sequences: Sequences) -> Float[Tensor, "b n N"]:
    """Scores of all values at every position, with causal attention."""
    x = block.embeddings[sequences.tokens]
    h = block.norm(x)
    q, k = h @ block.W_Q, h @ block.W_K
    if block.rope:
        positions = torch.arange(x.shape[1])
        q, k = rotate(q, positions), rotate(k, positions)
    v = h if block.W_V is None else h @ block.W_V @ block.W_O
    scores = q @ k.transpose(1, 2) / x.shape[2] ** 0.5
    n = scores.shape[1]
    visible = torch.ones(n, n, dtype=torch.bool).tril() & sequences.present[:, None, :]
    visible |= torch.eye(n, dtype=torch.bool)  # filling sees itself, and nobody sees filling
    y = scores.masked_fill(~visible, -torch.inf).softmax(2) @ v
    if block.residual:
        y = y + x
    out = unit_rows(block.mlp(unit_rows(y.flatten(0, 1)))) @ block.values.T
    return LOGIT_SCALE * out.unflatten(0, y.shape[:2])
