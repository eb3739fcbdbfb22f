"""Fact-storing MLPs made of an encoder, key -> code of its value, and a linear decoder."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lib.constructions.decoder import Code, johnson_lindenstrauss
from lib.constructions.encoder import GadgetEncoder, gated_encoder, hidden_size
from lib.constructions.gradient import FAST, Recipe, gradient_descent
from lib.decodability import Decodability, decodability
from lib.facts import FactSet
from lib.mlp import GatedMLP, PlainMLP
from lib.numerics import row_blocks


class EncoderDecoder(nn.Module):
    """x -> D enc(x), an encoder of one hidden layer and a linear decoder.

    Args:
        encoder: keys to codes, with ``width`` and ``parameter_count``.
        D: decoder, in the dtype of the encoder.

    Raises:
        ValueError: D does not take the encoder's codes, is empty, or has another dtype.

    Source: Dugan et al., Section 4.3.
    """

    def __init__(self, encoder: GadgetEncoder | GatedMLP | PlainMLP, D: Float[Tensor, "d m"]):
        super().__init__()
        last = encoder.A if isinstance(encoder, GadgetEncoder) else encoder.B
        if D.ndim != 2 or len(D) == 0 or D.shape[1] != len(last) or D.dtype != last.dtype:
            raise ValueError(
                f"D must be (d, {len(last)}), as codes are, not empty and {last.dtype}; "
                f"got {tuple(D.shape)} and {D.dtype}"
            )
        self.encoder, self.D = encoder, nn.Parameter(D, requires_grad=False)

    def features(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n h"]:
        """Those of the encoder."""
        return self.encoder.features(x)

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d_v"]:
        """The output for each row."""
        return self.encoder(x) @ self.D.T

    @property
    def width(self) -> int:
        """Hidden width of the encoder, which is that of the folded MLP."""
        return self.encoder.width

    @property
    def parameter_count(self) -> int:
        """Weights of the encoder and of D, kept apart as the paper counts."""
        return self.encoder.parameter_count + self.D.numel()

    def folded(self) -> GatedMLP | PlainMLP:
        """The same function as one MLP, whose readout is D times that of the encoder.

        It has more entries, (2 d + d_v) times the width, of which few are free.
        """
        encoder = self.encoder.folded() if isinstance(self.encoder, GadgetEncoder) else self.encoder
        return encoder.with_readout(self.D @ encoder.B)


def encoder_decoder(
    facts: FactSet,
    m: int,
    *,
    generator: torch.Generator,
    gate: str = "silu",
    shared: bool = False,
    optimal: Decodability | None = None,
) -> EncoderDecoder:
    """The closed construction: exact gadgets for the codes of a Johnson-Lindenstrauss decoder.

    Its hidden size is 1.1 F / d for each of the m entries of a code. It stores the facts if the
    code decodes; that is decided before any gadget is solved.

    Args:
        facts: what to store.
        m: entries of a code, a multiple of rho^-2 log N.
        gate, shared: of the encoder.
        optimal: the decodability of the values, if it is known.

    Returns:
        A frozen module in the dtype of the facts.

    Raises:
        ValueError: m is out of range, a value is not decodable, the code does not decode, or the
            encoder's system has not full rank.

    Source: Dugan et al., Algorithm 1.
    """
    outputs = margin_optimal(facts, optimal).values
    code = johnson_lindenstrauss(outputs, m, generator=generator)
    if not code.decodes(facts.values):
        raise ValueError(f"this random code of m = {m} entries does not decode; m must grow")
    return with_exact_encoder(facts, code, generator=generator, gate=gate, shared=shared)


def with_exact_encoder(
    facts: FactSet,
    code: Code,
    *,
    generator: torch.Generator,
    gate: str = "silu",
    shared: bool = False,
) -> EncoderDecoder:
    """Exact gadgets in front of any code, of hidden size 1.1 F / d (*Bin*).

    Raises:
        ValueError: as :func:`lib.constructions.encoder.gated_encoder`.

    Source: Dugan et al., Appendix A.1.3.
    """
    F, d = facts.keys.shape
    codes = code.codes[facts.targets]
    encoder = gated_encoder(
        facts.keys, codes, hidden_size(F, d), generator=generator, gate=gate, shared=shared
    )
    return EncoderDecoder(encoder, code.D)


def exact_parameters(m: int, F: int, d: int, d_v: int, *, shared: bool = False) -> int:
    """Weights of :func:`with_exact_encoder` for codes of m entries, without building it."""
    h = hidden_size(F, d)
    return m * h * d + (h * d if shared else m * h * d) + m * h + d_v * m


def with_trained_encoder(
    facts: FactSet,
    code: Code,
    width: int,
    *,
    generator: torch.Generator,
    recipe: Recipe = FAST,
    enough: float = float("inf"),
) -> EncoderDecoder:
    """A gated MLP trained to answer every key with its code, by squared distance (*GD*).

    Args:
        facts, code: what to store.
        width: hidden units of the encoder, at least 1.
        recipe, enough: of :func:`lib.constructions.gradient.gradient_descent`; the margins
            that it looks at are those of the decoded outputs.

    Raises:
        ValueError: an argument is out of range.

    Source: Dugan et al., Section 4.1, Appendix A.1.3.
    """
    seen = FactSet(facts.keys, facts.values @ code.D, facts.targets)  # <D c, v> = <c, D^T v>
    encoder = gradient_descent(
        seen,
        width,
        generator=generator,
        gate="silu",
        loss="squared",
        codes=code.codes,
        recipe=recipe,
        enough=enough,
    )
    return EncoderDecoder(encoder, code.D)


def naive(facts: FactSet) -> PlainMLP:
    """One ReLU for each fact, open at its key alone, and the margin-optimal output behind it.

    The unit of key i points along the key's own margin-optimal direction u, with a threshold at the
    largest <u, k_j> of the others, scaled to 1 at k_i. So a key is stored like this only if it is
    no convex combination of the others.

    Raises:
        ValueError: a key or an answer is not decodable, two keys are equal, or there is only one.

    Source: Dugan et al., Appendix B.3.1, whose text leaves the thresholds open.
    """
    if len(facts) < 2 or len(facts.keys.unique(dim=0)) < len(facts):
        raise ValueError(f"keys must be at least 2 and distinct; got {len(facts)} rows")
    keys = decodability(facts.keys)
    _check_decodable("keys", keys)
    U, K = keys.outputs, facts.keys.double().cpu()
    own = (U * K).sum(1)
    other = torch.cat([_largest_other(U, K, rows) for rows in row_blocks(len(K), len(K))])
    A, b = U / (own - other)[:, None], -other / (own - other)
    outputs = margin_optimal(facts).answers
    return PlainMLP(
        A.to(facts.keys), b.to(facts.keys), outputs.T.contiguous(), "relu"
    ).requires_grad_(False)


def _largest_other(U: Tensor, K: Tensor, rows: slice) -> Tensor:
    """max over j other than i of <u_i, k_j>, for a block of i."""
    scores = U[rows] @ K.T
    scores.diagonal(rows.start).fill_(-torch.inf)
    return scores.amax(1)


def margin_optimal(facts: FactSet, optimal: Decodability | None = None) -> FactSet:
    """The facts with u* in place of the values: what any construction should output.

    An MLP that answers every key with u*_f(i), or near it, stores the facts.

    Raises:
        ValueError: a value is not decodable.

    Source: Dugan et al., Sections 3.2 and A.1.3.
    """
    optimal = decodability(facts.values) if optimal is None else optimal
    _check_decodable("values", optimal)
    return FactSet(facts.keys, optimal.outputs.to(facts.values), facts.targets)


def _check_decodable(name: str, found: Decodability) -> None:
    if not found.decodable.all():
        i = int((~found.decodable).nonzero()[0])
        raise ValueError(
            f"{name} must not be convex combinations of each other; row {i} is, "
            f"and {int((~found.decodable).sum())} are in all"
        )
