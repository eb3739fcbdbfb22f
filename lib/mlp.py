"""MLPs of one hidden layer: the gated one, B((A x) * sigma(G x)), and the plain one."""

import copy
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lib.decoding import Memory
from lib.facts import gaussian
from lib.files import replacing
from lib.numerics import check_choice

GATES = {
    "identity": lambda t: t,
    "relu": nn.functional.relu,
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
}


class _OneHiddenLayer(nn.Module):
    """MLP(x) = B phi(x), whatever the features."""

    def __init__(self, gate: str, layout: str, fits: bool, **weights: Tensor) -> None:
        """Take the weights for parameters, if they fit one another and are otherwise in order."""
        super().__init__()
        *first, last = weights
        names = f"{', '.join(first)} and {last}"
        shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
        if not fits:
            raise ValueError(f"{layout}; got {shapes}")
        dtypes = [weight.dtype for weight in weights.values()]
        if not all(weight.numel() for weight in weights.values()) or len(set(dtypes)) > 1:
            raise ValueError(
                f"{names} must not be empty and must share one dtype; got {shapes}, "
                f"{', '.join(map(str, dtypes))}"
            )
        if not all(weight.isfinite().all() for weight in weights.values()):
            raise ValueError(f"{names} must be finite")
        check_choice("gate", gate, GATES)
        for name, weight in weights.items():
            setattr(self, name, nn.Parameter(weight))
        self.gate = gate

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d_v"]:
        """MLP(x) for each row."""
        return self.features(x) @ self.B.T

    @property
    def width(self) -> int:
        """Hidden width m."""
        return self.A.shape[0]

    @property
    def parameter_count(self) -> int:
        """W, all entries of the weights."""
        return sum(weight.numel() for weight in self.parameters())

    def with_readout(self, B: Float[Tensor, "p m"]) -> "_OneHiddenLayer":
        """A frozen MLP of the same features, in their memory, with B in their dtype for readout."""
        weights = {name: weight.detach() for name, weight in self.named_parameters()}
        weights["B"] = B.detach().to(self.B)
        return type(self)(**weights, gate=self.gate).requires_grad_(False)


class GatedMLP(_OneHiddenLayer):
    """MLP(x) = B phi(x) with features phi(x) = (A x) * sigma(G x), no biases; W = (2 d + d_v) m.

    Args:
        A: up projection.
        G: gate projection.
        B: readout.
        gate: sigma, one of ``identity`` (the bilinear MLP), ``relu``, ``silu``, ``gelu``.

    Raises:
        ValueError: the shapes do not fit or are empty, dtypes differ, an entry is not finite, or
            the gate is unknown.

    Source: Garcia et al., eq. 4.
    """

    def __init__(
        self,
        A: Float[Tensor, "m d"],
        G: Float[Tensor, "m d"],
        B: Float[Tensor, "d_v m"],
        gate: str = "identity",
    ) -> None:
        fits = A.ndim == B.ndim == 2 and A.shape == G.shape and B.shape[1] == A.shape[0]
        super().__init__(gate, "A and G must be (m, d) and B (d_v, m)", fits, A=A, G=G, B=B)

    def features(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        """phi(x) for each row."""
        return (x @ self.A.T) * GATES[self.gate](x @ self.G.T)

    def save(self, path: str | Path) -> None:
        """Write weights and gate to one file, which is complete or as it was before."""
        with replacing(Path(path)) as partial:
            torch.save({"gate": self.gate, "weights": self.state_dict()}, partial)

    @classmethod
    def load(cls, path: str | Path) -> "GatedMLP":
        """Read an MLP written by :meth:`save` on the CPU and frozen; runs no code from the file."""
        stored = torch.load(path, weights_only=True, map_location="cpu")
        return cls(**stored["weights"], gate=stored["gate"]).requires_grad_(False)


class PlainMLP(_OneHiddenLayer):
    """MLP(x) = B sigma(A x + b), without gates; W = (d + 1 + d_v) m.

    Args:
        A: hidden weights.
        b: hidden biases.
        B: readout.
        gate: sigma, one of the gates of :class:`GatedMLP`.

    Raises:
        ValueError: as :class:`GatedMLP`.

    Source: Dugan et al., Appendix B.1.1.
    """

    def __init__(
        self,
        A: Float[Tensor, "m d"],
        b: Float[Tensor, " m"],
        B: Float[Tensor, "d_v m"],
        gate: str = "relu",
    ) -> None:
        fits = A.ndim == B.ndim == 2 and b.shape == A.shape[:1] and B.shape[1] == A.shape[0]
        super().__init__(gate, "A must be (m, d), b (m,) and B (d_v, m)", fits, A=A, b=b, B=B)

    def features(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        """sigma(A x + b) for each row."""
        return GATES[self.gate](x @ self.A.T + self.b)


def random_mlp(d: int, m: int, d_v: int, gate: str, *, generator: torch.Generator) -> GatedMLP:
    """A frozen MLP with independent Gaussian weights, scaled so that outputs are of order one.

    A and G have N(0, 1) entries, B has N(0, 1/m) entries; float64.
    """
    A, G = (torch.randn(m, d, dtype=torch.float64, generator=generator) for _ in range(2))
    return GatedMLP(A, G, gaussian(d_v, m, generator=generator), gate).requires_grad_(False)


def frozen(memory: Memory) -> Memory:
    """The memory itself, its weights frozen if it has any."""
    return memory.requires_grad_(False) if isinstance(memory, nn.Module) else memory


def with_memory(model: nn.Module, memory: Memory) -> nn.Module:
    """A copy of a model that has another memory, frozen, for its ``mlp``.

    Neither memory is copied, nor are the model's ``embeddings``, which are frozen.
    """
    copied = copy.deepcopy(model, {id(part): part for part in (model.mlp, model.embeddings)})
    del copied.mlp  # modules are registered and functions are not
    copied.mlp = frozen(memory)
    return copied


def check_bilinear(mlp: GatedMLP) -> None:
    """Raise ValueError unless the gate is the identity."""
    if mlp.gate != "identity":
        raise ValueError(f"mlp must be bilinear, with the gate 'identity'; got {mlp.gate!r}")
