"""Four ways to change facts in a language model: a new memory, or an update of the old one.

ROME, MEMIT and AlphaEdit add Delta to the readout B of a gated memory, B phi(q). Here as in
Garcia et al. the question q of a fact is what attention returns before the author in one template,
TEMPLATE; k = phi(q) is the fact's key inside the memory, K_1 (k, m) those of the altered facts and
K_0 those of the preserved ones. All three first look for the residual r that, added to the
memory's output, makes the model say the new author, by gradient descent; no random prefixes, and
no penalty on other predictions, since every title has one relation only. Keys are solved for in
float64. What is adapted to one layer is said with each method.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from tqdm import tqdm

from lib.editing.language import Corpus
from lib.editing.model import LanguageModel
from lib.editing.updates import least_squares_update, null_space_update, rank_one_update
from lib.facts import FactSet
from lib.mlp import GatedMLP
from lib.numerics import check_nonnegative, unit_rows

#: Number of the template in which edits are made.
TEMPLATE = 0


@dataclass(frozen=True, eq=False)
class Edit:
    """A change of some facts.

    Attributes:
        facts: all facts as they should be afterwards, in the order of the corpus.
        altered: numbers of those that change, distinct, int64.

    Raises:
        ValueError: altered is not a list of whole numbers, or one is out of range or repeated.
    """

    facts: FactSet
    altered: Int[Tensor, " k"]

    def __post_init__(self) -> None:
        F, altered = len(self.facts), self.altered
        if altered.ndim != 1 or altered.dtype != torch.int64:
            got = f"{altered.dtype} of shape {tuple(altered.shape)}"
            raise ValueError(f"altered must be a vector of int64; got {got}")
        if len(altered.unique()) < len(altered) or ((altered < 0) | (altered >= F)).any():
            raise ValueError(f"altered must be distinct numbers in 0..{F - 1}")

    @property
    def preserved(self) -> Int[Tensor, " preserved"]:
        """Numbers of the facts that stay."""
        kept = torch.ones(len(self.facts), dtype=torch.bool, device=self.altered.device)
        kept[self.altered] = False
        return kept.nonzero().squeeze(1)

    @property
    def tokens(self) -> Int[Tensor, " k"]:
        """The new authors, numbered as tokens."""
        return len(self.facts) + self.facts.targets[self.altered]

    def check_size(self, corpus: Corpus) -> None:
        """Raise ValueError unless there are as many facts, and values, as titles and authors."""
        sizes = len(self.facts), len(self.facts.values)
        expected = len(corpus), len(corpus.authors)
        if sizes != expected:
            raise ValueError(
                f"the edit must have the corpus's {expected[0]} facts and {expected[1]} values; "
                f"got {sizes[0]} and {sizes[1]}"
            )


def permuted(facts: FactSet, altered: Int[Tensor, " k"], *, generator: torch.Generator) -> Edit:
    """Hand the answers of some facts on among them, along one random cycle.

    Every answer changes if all are different; where authors have several books, a fact may be
    handed the author that it has.

    Args:
        facts: as they are.
        altered: none, or at least 2.

    Raises:
        ValueError: there is one altered fact only, or numbers are not as in :class:`Edit`.

    Source: Garcia et al., Appendix A.4.5 ("a fresh permutation of author values").
    """
    if len(altered) == 1:
        raise ValueError("altered must have no number, or at least 2; got 1")
    cycle = altered[torch.randperm(len(altered), generator=generator).to(altered.device)]
    targets = facts.targets.clone()
    targets[cycle] = facts.targets[cycle.roll(1)]
    return Edit(FactSet(facts.keys, facts.values, targets), altered)


@dataclass(frozen=True)
class Descent:
    """How residuals are found, by Adam.

    Attributes:
        steps: most of them, at least 1.
        rate: learning rate, positive.
        decay: factor on |r|^2 / |output|^2 in the loss, at least 0.
        clip: largest |r| / |output|, positive or infinite.
        enough: a residual rests when the cross entropy of its author is below this, at least 0.

    Raises:
        ValueError: a setting is not as above, or another than clip is not finite.

    The decay of ROME's released code is on |r| / |output|^2, and that code rests when the whole
    loss, decay included, is small.
    """

    steps: int = 100
    rate: float = 0.05
    decay: float = 0.0
    clip: float = inf
    enough: float = 0.0

    def __post_init__(self) -> None:
        whole = isinstance(self.steps, int) and self.steps >= 1
        at_least_zero = all(0 <= x < inf for x in (self.decay, self.enough))
        if not (whole and at_least_zero and 0 < self.rate < inf and self.clip > 0):
            raise ValueError(
                "steps must be an integer of at least 1, rate positive, decay and enough at least "
                f"0, these three finite, and clip positive; got {self}"
            )


#: Settings to choose from with :func:`lib.editing.metrics.tune`, on edits of other facts than those
#: that are scored. Steps and rate are those which the published sweeps chose most; there are more
#: ways to stop early; tolerance and ridge are in our units, 100 leaves hardly a direction out.
ROME_GRID = [
    {"descent": Descent(decay=decay, enough=enough)}
    for decay, enough in product((0.0, 1.5e-3), (0.05, 0.5, 1.0, 2.0, 4.0))
]
MEMIT_GRID = [
    {"descent": Descent(clip=clip, enough=enough), "weight": weight}
    for clip, enough, weight in product((0.75, inf), (0.0, 0.05, 0.5), (1.0, 15.0, 150.0, 1500.0))
]
ALPHA_EDIT_GRID = [
    {"descent": Descent(enough=enough), "tolerance": tolerance, "ridge": ridge}
    for enough, tolerance, ridge in product((0.0, 0.05, 0.5), (0.1, 1.0, 100.0), (1.0, 10.0, 100.0))
]


# --- the methods ---------------------------------------------------------------------------------


def swap(
    model: LanguageModel, edit: Edit, construct: Callable[[FactSet], GatedMLP]
) -> LanguageModel:
    """MLP swapping: construct a memory for all facts as edited, put it in, and change nothing else.

    Args:
        model: left as it is.
        edit: what should change; without altered facts nothing is constructed.
        construct: makes a memory of facts.

    Source: Garcia et al., Section 5.2.
    """
    return model.with_mlp(construct(edit.facts) if len(edit.altered) else model.mlp)


def rome(
    model: LanguageModel, corpus: Corpus, edit: Edit, *, descent: Descent = Descent()
) -> LanguageModel:
    """Rank-one updates, one altered fact after the other, each found under the weights so far.

    Adapted: the covariance of keys is that of all facts before the edit; the update acts on the
    memory at the last token of the prompt.

    Args:
        model: with a gated memory; left as it is.
        corpus: titles and templates.
        edit: what should change.
        descent: of the residuals.

    Raises:
        ValueError: the edit has another size than the corpus, the memory is not a gated MLP, or a
            key in it is zero.

    Source: Meng et al., 2022, Section 3.1; Garcia et al., Appendix A.4.5.
    """
    edit.check_size(corpus)
    x, K = questions_and_keys(model, corpus)
    B, precision = model.mlp.B.double(), torch.linalg.pinv(K.T @ K / len(K), hermitian=True)
    facts = zip(edit.altered.tolist(), edit.tokens, strict=True)
    for i, token in tqdm(facts, total=len(edit.altered), disable=None, leave=False, desc="ROME"):
        r = residuals(model, x[i, None], (K[i] @ B.T)[None], token[None], descent)
        B = B + rank_one_update(K[i], r[0], precision)
    return model.with_mlp(model.mlp.with_readout(B))


def memit(
    model: LanguageModel,
    corpus: Corpus,
    edit: Edit,
    *,
    descent: Descent = Descent(),
    weight: float = 1.0,
) -> LanguageModel:
    """One update for all altered facts, by least squares against the preserved ones.

    Adapted: one layer takes all of the residuals, and the preserved keys are those of the facts.

    Args:
        model, corpus, edit, descent: as in :func:`rome`.
        weight: lambda >= 0, of the mean square change on preserved facts.

    Raises:
        ValueError: the weight is out of range, the edit has another size than the corpus, or the
            memory is not a gated MLP.

    Source: Meng et al., 2023, Section 4.2; Garcia et al., Appendix A.4.5.
    """
    edit.check_size(corpus)
    check_nonnegative(weight=weight)

    def solve(K_1: Tensor, r: Tensor, K_0: Tensor) -> Tensor:
        return least_squares_update(K_1, r, weight * K_0.T @ K_0 / max(len(K_0), 1))

    return _one_update(model, corpus, edit, descent, solve)


def alpha_edit(
    model: LanguageModel,
    corpus: Corpus,
    edit: Edit,
    *,
    descent: Descent = Descent(),
    tolerance: float = 1e-2,
    ridge: float = 1.0,
) -> LanguageModel:
    """One update for all altered facts, in directions that preserved keys hardly use.

    Adapted as :func:`memit`; tolerance and ridge count in units of the mean eigenvalue of the
    preserved keys' covariance, so that they do not depend on the scale of features.

    Args:
        model, corpus, edit, descent: as in :func:`rome`.
        tolerance, ridge: of :func:`null_space_update`.

    Raises:
        ValueError: a setting is out of range, no fact is preserved, the edit has another size than
            the corpus, or the memory is not a gated MLP.

    Source: Fang et al., 2025, Section 3; Garcia et al., Appendix A.4.5.
    """
    edit.check_size(corpus)
    check_nonnegative(tolerance=tolerance, ridge=ridge)
    solve = partial(null_space_update, tolerance=tolerance, ridge=ridge)
    return _one_update(model, corpus, edit, descent, solve)


# --- what the three updates ask of the model --------------------------------------------------


def questions_and_keys(
    model: LanguageModel, corpus: Corpus
) -> tuple[Float[Tensor, "F d"], Float[Tensor, "F m"]]:
    """What the three updates see of each fact, in the template of the edit.

    Returns:
        The stream before the author, and the memory's features there, float64.

    Raises:
        ValueError: the memory is not a gated MLP.
    """
    if not isinstance(model.mlp, GatedMLP):
        raise ValueError(f"the memory must be a GatedMLP; got {type(model.mlp).__name__}")
    numbers = torch.arange(len(corpus))
    prompts = corpus.sentences(numbers, torch.full_like(numbers, TEMPLATE), corpus.answers)
    with torch.no_grad():
        x = model.questions(prompts.to(model.embeddings.device))
        return x, model.mlp.features(unit_rows(x)).double()


def residuals(
    model: LanguageModel,
    x: Float[Tensor, "b d"],
    outputs: Float[Tensor, "b d"],
    tokens: Int[Tensor, " b"],
    descent: Descent,
) -> Float[Tensor, "b d"]:
    """What to add to the memory's outputs so that the model says the given authors, float64.

    Each row minimises the cross entropy of its author, with :class:`Descent`, by itself.

    Args:
        model: everything but the memory is asked.
        x: the stream where the memory is asked.
        outputs: of the memory there.
        tokens: numbers of the authors' tokens.

    Raises:
        ValueError: an output is zero, and decay or clip measures residuals by it.

    Source: Meng et al., 2022, eq. 4, without prefixes and divergence.
    """
    x, outputs = x.detach(), outputs.detach().to(x)
    lengths = outputs.norm(dim=1, keepdim=True)
    measured = descent.decay > 0 or descent.clip < inf
    if measured and not lengths.all():
        raise ValueError("outputs must not be zero where decay or clip measures residuals by them")
    r = torch.zeros_like(outputs, requires_grad=True)
    optimizer = torch.optim.Adam([r], lr=descent.rate)
    for _ in range(descent.steps):
        scores = model.scores(model.mix(x, outputs + r))
        losses = nn.functional.cross_entropy(scores, tokens, reduction="none")
        moving = (losses.detach() >= descent.enough)[:, None]
        if not moving.any():
            break
        total = losses.sum()
        if measured:
            total = total + descent.decay * (r / lengths).square().sum()
        (r.grad,) = torch.autograd.grad(total, r)
        with torch.no_grad():
            before = r.clone()
            optimizer.step()
            if measured:
                r.mul_((descent.clip * lengths / r.norm(dim=1, keepdim=True)).clamp(max=1))
            r.copy_(torch.where(moving, r, before))
    return r.detach().double()


def _one_update(
    model: LanguageModel,
    corpus: Corpus,
    edit: Edit,
    descent: Descent,
    solve: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> LanguageModel:
    """The model with Delta = solve(K_1, R, K_0) added to the readout of its memory."""
    x, K = questions_and_keys(model, corpus)
    x_1, K_1, B = x[edit.altered], K[edit.altered], model.mlp.B
    r = residuals(model, x_1, K_1 @ B.T.double(), edit.tokens, descent)
    return model.with_mlp(model.mlp.with_readout(B + solve(K_1, r, K[edit.preserved])))
