"""The NTK construction: random gates and outputs, up weights that correlate them with the facts."""

import torch
from jaxtyping import Float
from torch import Tensor

from lib.facts import FactSet
from lib.mlp import GatedMLP
from lib.numerics import check_count, row_blocks, unit_rows


def ntk(facts: FactSet, width: int, *, generator: torch.Generator) -> GatedMLP:
    """MLP with random gates w_r ~ N(0, I) and random unit outputs p_r; see :func:`ntk_mlp`.

    Args:
        facts: what to store.
        width: m >= 1.

    Returns:
        A frozen ReLU-gated MLP in the dtype of the facts.

    Raises:
        ValueError: width is not an integer of at least 1.

    Source: Garcia et al., Appendix B.3, after Nichani et al. (2024), Hermite degree 1.
    """
    check_count(width=width)
    gates, outputs = (
        torch.randn(width, table.shape[1], dtype=torch.float64, generator=generator).to(table)
        for table in (facts.keys, facts.values)
    )
    return ntk_mlp(facts, gates, outputs)


def ntk_mlp(
    facts: FactSet, gates: Float[Tensor, "m d"], outputs: Float[Tensor, "m d_v"]
) -> GatedMLP:
    """P (ReLU(W_gate x) * (W_up x)) with W_up = ((K W_gate^T) * (C P))^T K / m.

    Args:
        facts: what to store; C are the values of the answers.
        gates: W_gate, in the dtype of the facts.
        outputs: rows p_r, scaled here to unit norm; P has them as columns.

    Source: Garcia et al., Appendix B.3.
    """
    P = unit_rows(outputs).T
    up = torch.zeros_like(gates)
    for rows in row_blocks(len(facts), len(gates)):
        K, C = facts.keys[rows], facts.answers[rows]
        up += ((K @ gates.T) * (C @ P)).T @ K
    return GatedMLP(up / len(gates), gates, P.contiguous(), "relu").requires_grad_(False)
