"""One attention head and a frozen fact MLP: the Transformer of the recall experiments, on a page.

    h = RMSNorm(E[tokens])                         normalised embeddings
    p = softmax(h_last W_Q (h W_K)^T / sqrt(d))    where the last position looks
    y = unit(p h W_V W_O)                          the query that reaches the MLP
    s = scale * unit(MLP(y)) V^T                   scores of the values

Without positions the order of tokens does not matter; with rotary ones queries and keys are turned
first. One answer is asked for, at the last position: nothing else is computed. Projections are
applied to the vocabulary and then looked up, not to every token of every sequence.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lib.decoding import Memory
from lib.facts import FactSet, gaussian
from lib.mlp import frozen, with_memory
from lib.numerics import unit_rows
from lib.transformer.recall import RecallTask, Sequences
from lib.transformer.rope import rotate

#: Factor on unit-norm outputs before the softmax: scores of unit vectors alone would leave even a
#: perfect answer with a large loss.
LOGIT_SCALE = 20.0


class RecallBlock(nn.Module):
    """The block for a task. Query and key projections and the first norm's gain are trained.

    Args:
        task: its embeddings and values are used and stay frozen.
        mlp: the fact memory, frozen; any map from (b, d) to (b, d_v).
        residual: whether the last token's embedding is added to what attention returns.
        free_values: whether value and output projections are trained, or fixed to the identity.
        rope: whether queries and keys carry rotary positions; d must then be even.
        generator: of the initial projections, N(0, 1/d) each.

    Raises:
        ValueError: positions are rotary and d is odd.

    Source: Garcia et al., Appendices A.1.2 and A.4.3; Dugan et al., Section 5.1 and, for rotary
    positions, Appendix A.2.2.
    """

    def __init__(
        self,
        task: RecallTask,
        mlp: Memory,
        *,
        generator: torch.Generator,
        residual: bool = False,
        free_values: bool = False,
        rope: bool = False,
    ) -> None:
        super().__init__()
        d = task.facts.keys.shape[1]
        if rope and d % 2:
            raise ValueError(f"rope needs keys with an even number of columns; got {d}")

        def projection() -> nn.Parameter:
            return nn.Parameter(gaussian(d, d, generator=generator).to(task.facts.keys))

        self.norm = nn.RMSNorm(d).to(task.facts.keys)
        self.W_Q, self.W_K = projection(), projection()
        self.W_V, self.W_O = (projection(), projection()) if free_values else (None, None)
        self.residual, self.rope = residual, rope
        self.register_buffer("embeddings", task.embeddings)
        self.register_buffer("values", task.facts.values)
        self.facts = len(task.facts)
        self.mlp = frozen(mlp)

    def attention(self, sequences: Sequences) -> Float[Tensor, "b n"]:
        """How the last position distributes its attention; zero on filling."""
        h = self.norm(self.embeddings)
        q = (h @ self.W_Q)[sequences.tokens[:, -1]]
        k = (h @ self.W_K)[sequences.tokens]
        if self.rope:
            positions = torch.arange(k.shape[1], device=k.device)
            q, k = rotate(q[:, None], positions[-1:])[:, 0], rotate(k, positions)
        scores = torch.einsum("bd,bnd->bn", q, k) / h.shape[1] ** 0.5
        return scores.masked_fill(~sequences.present, -torch.inf).softmax(1)

    def queries(self, sequences: Sequences) -> Float[Tensor, "b d"]:
        """The unit vectors with which the MLP is asked."""
        h = self.norm(self.embeddings)
        content = h if self.W_V is None else h @ self.W_V @ self.W_O
        y = torch.einsum("bn,bnd->bd", self.attention(sequences), content[sequences.tokens])
        if self.residual:
            y = y + self.embeddings[sequences.tokens[:, -1]]
        return unit_rows(y)

    def forward(self, sequences: Sequences) -> Float[Tensor, "b N"]:
        """Scores of all values at the last position."""
        return LOGIT_SCALE * unit_rows(self.mlp(self.queries(sequences))) @ self.values.T

    def with_mlp(self, mlp: Memory, facts: FactSet) -> "RecallBlock":
        """A copy with another memory, frozen, and the values of its facts; all else is the same.

        Raises:
            ValueError: the keys are not those of this block.
        """
        if len(facts) != self.facts or not torch.equal(facts.keys, self.embeddings[: self.facts]):
            raise ValueError("facts must have the keys of this block, in the same order")
        swapped = with_memory(self, mlp)
        swapped.values = facts.values
        return swapped
