"""LAuReL: learned weights, low-rank maps and earlier streams on the residual path."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from resjax.base import Array, PyTree, wide_dtype
from resjax.combinators.base import Layer, Stream, TokenContext, Views
from resjax.combinators.checks import check_choice, check_option
from resjax.combinators.numerics import recomputed
from resjax.combinators.ragged import RaggedRows
from resjax.combinators.source import DepthState, SourceCombinator, check_layer
from resjax.kernels.depth_attention import Sources

VARIANTS = ("rw", "lr", "pa", "rw+lr", "rw+pa", "rw+lr+pa")
NORMALIZE = ("none", "softmax")


class Laurel(SourceCombinator):
  """x_{i+1} = α_i f(x_i) + β_i (x_i + Σ_j γ_ij B_ij A_ij x_{i−j}) at every sublayer i.

  `rw`  learned numbers α, β; elsewhere they are 1
  `lr`  one low-rank map, of x_i alone, γ = 1;  A: [D, r] (down), B: [r, D] (up)
  `pa`  j = 0..min(k − 1, i) with learned γ_ij and one low-rank map per sublayer, A_ij = A_i and
        B_ij = B_i, or with rank 0 the identity
  `rw+lr`, `rw+pa` and `rw+lr+pa` put these together; with `lr` and `pa` every j has its own map.

  State: x, D values per token; with `pa` the embedding and the streams after all sublayers,
  (L · sites + 1) D (a scan keeps each stream once; the sum reads the last k). Parameters per
  sublayer: 2 (rw), 2 r D (lr), 2 r D + k (pa), 2 r k D + k (lr and pa), less for the first k − 1
  sublayers, which have fewer streams behind them.

  A starts column-orthogonal, A[d, c] = 1/√(r D) where d mod r = c, as in the paper's language
  models; B at zero, γ at one, or γ at zero for the identity; α = β = 1, or ½ with softmax. Hence a
  fresh one is `standard`, but for softmax. The paper gives no init of α, β, γ. A and B take weight
  decay.

  Args:
    variant: `rw`, `lr`, `pa`, `rw+lr`, `rw+pa` or `rw+lr+pa`; the paper's large models are `rw+lr`.
    rank: r, 1..D; 0 is the identity, for `pa` without `lr`. The paper has 4 (1B) to 64 (4B).
    num_previous: k, at least 1, of `pa`; the paper has 3.
    normalize: `none`, or `softmax`: (α, β) = softmax of two learned numbers, which bounds them.

  Raises:
    ValueError: variant, rank, num_previous or normalize out of range.

  Source: LAuReL, arXiv 2411.07501.
  """

  family = "scalars"

  def __init__(
    self,
    *,
    variant: str = "rw+lr",
    rank: int = 4,
    num_previous: int = 3,
    normalize: str = "none",
    **options: Any,
  ):
    super().__init__(**options)
    check_choice("variant", variant, VARIANTS)
    self.parts = tuple(variant.split("+"))
    least = 0 if "pa" in self.parts and "lr" not in self.parts else 1
    check_option("rank", rank, least <= rank <= self.d_model, f"{least}..{self.d_model}")
    check_option("num_previous", num_previous, num_previous >= 1, "num_previous >= 1")
    check_choice("normalize", normalize, NORMALIZE)
    weighs = normalize == "none" or "rw" in self.parts
    check_option("normalize", normalize, weighs, f"none with variant={variant!r}")
    self.rank, self.normalize = rank, normalize
    self.strategy = "history" if "pa" in self.parts else "carry"
    self.equals_standard_at_init = "rw" not in self.parts or normalize == "none"
    if "rw" in self.parts:
      fill = 1.0 if normalize == "none" else 0.0
      self.mix = nnx.Param(jnp.full((self.num_layers, len(self.sites), 2), fill))  # α, β
      self.per_layer += ("mix",)
    if "pa" in self.parts:
      behind = [range(min(num_previous, i + 1)) for i in range(self.num_sublayers)]
      self.rows = RaggedRows.of(behind, num_previous)
      self.gamma = nnx.Param(jnp.full(self.rows.size, 1.0 if rank else 0.0))
    if self._has_maps:
      self._make_maps()

  @property
  def _has_maps(self) -> bool:
    return "lr" in self.parts or ("pa" in self.parts and self.rank > 0)

  @property
  def _map_per_stream(self) -> bool:
    return {"lr", "pa"} <= set(self.parts)

  def _make_maps(self) -> None:
    shape: tuple[int, ...] = (self.num_layers, len(self.sites))
    if self._map_per_stream:
      shape = (self.rows.size,)
    else:
      self.per_layer += ("down", "up")
    self.decayed_parameters = ("down", "up")
    down = _column_orthogonal(self.d_model, self.rank)
    self.down = nnx.Param(jnp.broadcast_to(down, (*shape, *down.shape)))
    self.up = nnx.Param(jnp.zeros((*shape, self.rank, self.d_model)))

  def init(self, x: Stream, tokens: TokenContext | None = None) -> PyTree:
    return DepthState(Sources(recent=(x,))) if "pa" in self.parts else x

  def read(self, state: PyTree, layer: Layer, site: str) -> tuple[Views, Any]:
    return {"x": self._stream(state)}, None

  def write(
    self, state: PyTree, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> PyTree:  # fmt: skip
    if "pa" in self.parts:
      check_layer(layer, state.sources)
    weights = self._weights(layer, site) if "rw" in self.parts else None
    stream = _joined(out, [self._stream(state), *self._terms(state, layer, site)], weights)
    return DepthState(state.sources.append(stream)) if "pa" in self.parts else stream

  def final(self, state: PyTree) -> Stream:
    return self._stream(state)

  def _stream(self, state: PyTree) -> Array:
    return state.sources.from_end() if "pa" in self.parts else state

  def _weights(self, layer: Layer, site: str) -> Array:
    weights = self._row(self.mix, layer, site)
    return jax.nn.softmax(weights) if self.normalize == "softmax" else weights

  def _terms(self, state: PyTree, layer: Layer, site: str) -> Iterator[Array]:
    """Yields the arrays [B, T, D] that are added to the stream."""
    if "pa" not in self.parts:
      if "lr" in self.parts:
        yield self._low_rank(state, layer, site)
      return
    sublayer = layer * len(self.sites) + self.sites.index(site)
    gamma = self.rows.row(self.gamma[...], sublayer)
    if not self._map_per_stream:
      mixed = _weighted_latest(state.sources, gamma)
      yield self._low_rank(mixed, layer, site) if self.rank else mixed
      return
    down, up = (self.rows.row(p[...], sublayer) for p in (self.down, self.up))
    for back in range(self.rows.width):
      yield low_rank(state.sources.from_end(back), down[back], gamma[back] * up[back])

  def _low_rank(self, x: Array, layer: Layer, site: str) -> Array:
    return low_rank(x, self._row(self.down, layer, site), self._row(self.up, layer, site))


@recomputed
def _joined(out: Array, terms: list[Array], weights: Array | None) -> Array:
  """Returns α o + β Σ terms, or o + Σ terms without weights, in the dtype of the terms."""
  wide = wide_dtype(terms[0])
  branch, residual = out.astype(wide), sum(term.astype(wide) for term in terms)
  if weights is not None:
    branch, residual = weights[0] * branch, weights[1] * residual
  return (branch + residual).astype(terms[0].dtype)


@recomputed
def _weighted_latest(sources: Sources, weights: Array) -> Array:
  """Returns Σ_j w_j x_{i−j}, added in float32 or wider."""
  newest = sources.from_end()
  wide = wide_dtype(newest)
  terms = [w * sources.from_end(back).astype(wide) for back, w in enumerate(weights)]
  mixed = functools.reduce(jnp.add, terms)
  return mixed.astype(newest.dtype)


def low_rank(x: Stream, down: Float[Array, "D r"], up: Float[Array, "r D"]) -> Stream:
  """Returns x A B in the dtype of x; sums are in float32 or wider."""
  wide = wide_dtype(x)
  product = functools.partial(jnp.matmul, preferred_element_type=wide)
  return product(product(x, down.astype(x.dtype)).astype(x.dtype), up.astype(x.dtype)).astype(
    x.dtype
  )


def _column_orthogonal(width: int, rank: int) -> Array:
  """Returns [D, r] with 1/√(r D) where the row equals the column modulo r, and 0 elsewhere."""
  kept = np.arange(width)[:, None] % rank == np.arange(rank)
  return jnp.asarray(kept / math.sqrt(rank * width))
