"""Rotary position embedding."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: Wavelengths of the rotations grow geometrically from 2 pi to almost 2 pi times this.
BASE = 10_000.0


def rotate(
    x: Float[Tensor, "*batch n d"], positions: Int[Tensor, "*#batch n"]
) -> Float[Tensor, "*batch n d"]:
    """Turn each pair of neighbouring coordinates by an angle proportional to the position.

    Coordinates 2j and 2j + 1 of a vector at position t are rotated by t BASE^(-2j/d). Lengths stay
    the same, and inner products depend on the difference of two positions only:
    <rotate(q, s), rotate(k, t)> = <rotate(q, s + c), rotate(k, t + c)>.

    Args:
        x: vectors, d even.
        positions: of each vector, broadcast over leading axes.

    Raises:
        ValueError: d is odd.

    Source: Su et al., 2021, eq. 15.
    """
    d = x.shape[-1]
    if d % 2:
        raise ValueError(f"x must have an even number of columns; got {d}")
    frequencies = BASE ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
    angles = positions[..., None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
