"""LAuReL as Gemma 3n has it, at one site of a layer."""

import math
from typing import Any

import jax.numpy as jnp
from flax import nnx

from resjax.base import Array, aligned, wide_dtype
from resjax.combinators.base import Layer, Stream, Views
from resjax.combinators.checks import check_option
from resjax.combinators.numerics import Number, recomputed, rms_normalized
from resjax.combinators.systems.laurel import low_rank
from resjax.combinators.systems.standard import Standard

_LEAST_RANK = 8


class Gemma3nLaurel(Standard):
  """x ← (x + f(x) + x̂ + γ ⊙ RMS(B A x̂)) / √2 at one site, x̂ its normalised input.

  The site is `attention` where a layer has one, else the first; others: x ← x + f(x). A: [D, r]
  (down), B: [r, D] (up). Gemma 3n also normalises the outputs of both branches, which is
  config.model.post_norm.

  State: x, D values per token. Parameters: (2 r + 1) D per layer; A and B take weight decay.

  Not `standard` at init: x̂ is added, and the sum divided by √2. A ~ N(0, 1/D), B ~ N(0, 1/r) and
  γ = 0, so that only γ learns at the first step. Gemma 3n starts at γ = 1; a zero B instead would
  have gradients of 1/√eps through the norm.

  When to use it: to continue or ablate Gemma 3n, the only production model with LAuReL. Nothing is
  published about this form; for the plain one the paper has 2.5 to 20 % on tasks with 0.012 % more
  parameters at 1B, and no comparison by others.

  Args:
    rank: r, up to D; 0: ⌊D / 32⌋, which is 64 for Gemma 3n's D of 2048, and at least 8, or D. The
      norm of a map of rank 1 is but a sign, which changes at once.
    eps: of the norm, > 0.

  Raises:
    ValueError: rank or eps out of range.

  Source: the equations of Gemma 3n's text model as transformers 5.23 has them; LAuReL, arXiv
  2411.07501.
  """

  per_layer = ("down", "up", "scale")
  decayed_parameters = ("down", "up")
  equals_standard_at_init = False

  def __init__(self, *, rank: int = 0, eps: float = 1e-6, rngs: nnx.Rngs, **options: Any):
    super().__init__(**options)
    check_option("rank", rank, 0 <= rank <= self.d_model, f"0..{self.d_model}")
    self.eps = check_option("eps", eps, eps > 0, "eps > 0")
    rank = rank or min(self.d_model, max(_LEAST_RANK, self.d_model // 32))
    self.site = "attention" if "attention" in self.sites else self.sites[0]
    depth, width = self.num_layers, self.d_model
    draw = nnx.initializers.normal
    self.down = nnx.Param(draw(width**-0.5)(rngs.params(), (depth, width, rank)))
    self.up = nnx.Param(draw(rank**-0.5)(rngs.params(), (depth, rank, width)))
    self.scale = nnx.Param(jnp.zeros((depth, width)))

  def write(
    self, state: Stream, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> Stream:  # fmt: skip
    """See `Combinator.write`. The site that is changed needs `normed`."""
    if site != self.site:
      return state + out
    if normed is None:
      raise ValueError("combinator 'gemma3n_laurel' needs write(..., normed=views)")
    down, up, scale = (self._layer_row(p, layer) for p in (self.down, self.up, self.scale))
    mapped = low_rank(normed["x"], down, up)
    return _halved(state, out, normed["x"], mapped, scale, self.eps)


@recomputed
def _halved(x: Array, out: Array, normed: Array, mapped: Array, scale: Array, eps: Number) -> Array:
  """Returns (x + o + x̂ + γ ⊙ RMS(m)) / √2 in the dtype of x, computed in float32 or wider."""
  wide = wide_dtype(x)
  added = aligned(scale, x) * rms_normalized(mapped, eps)
  total = x.astype(wide) + out.astype(wide) + normed.astype(wide) + added
  return (total * math.sqrt(0.5)).astype(x.dtype)
