"""A decoder whose residual path is linear: its weights are held fixed, and writes have scales."""

from collections.abc import Mapping
from typing import Any, cast

import jax.numpy as jnp
from flax import nnx
from jax import lax

from resjax.base import Array, PyTree
from resjax.combinators import OUTPUT, Combinator, DepthState, Layer, TokenContext, Views
from resjax.models import Decoder
from resjax.nn import Identity
from resjax.study.analysis.wrapped_path import WrappedPath, with_path

Rows = Mapping[str, Array]  # what a decoder is called with


def output(decoder: Decoder, rows: Rows, of_writes: Array, of_heads: Array | None) -> Array:
  """Returns the output of the layers [B, T, D] along the frozen path.

  Args:
    decoder: the model.
    rows: the prompt.
    of_writes: added to the scale of each write, which is 1 otherwise [P, B, T, D].
    of_heads: the same for the heads of each layer [L, H]; None: nothing.
  """
  changed = with_path(decoder, FrozenPath(decoder.combinator, of_writes))
  if of_heads is not None:
    projection = changed.layers.attention.o_proj
    kernel = projection.kernel
    by_row = jnp.repeat(1 + of_heads, kernel.shape[1] // of_heads.shape[1], axis=1)
    scaled = kernel.replace(kernel[...] * by_row[..., None])
    projection.kernel = cast(nnx.Param[Array], scaled)
  changed.final_norm = Identity()
  return changed(rows["inputs"], rows["segment_ids"], rows["positions"]).astype(jnp.float32)


class FrozenPath(WrappedPath):
  """A residual path whose weights are fixed: derivatives follow the writes to the output alone.

  Args:
    inner: the combinator of the model.
    scales: added to the scale of each write, which is 1 otherwise [P, B, T, D].
  """

  def __init__(self, inner: Combinator, scales: Array):
    super().__init__(inner)
    self.scales = nnx.Variable(scales)

  def init(self, x: Array, tokens: TokenContext | None = None) -> PyTree:
    """Returns the state after the embedding, the first write. See `Combinator.init`."""
    return super().init(self._scaled(lax.stop_gradient(x), 0), tokens)

  def read(self, state: PyTree, layer: Layer, site: str) -> tuple[Views, Any]:
    """Returns views whose values branches take as given. See `Combinator.read`."""
    views, tape = super().read(state, layer, site)
    return lax.stop_gradient(views), tape

  def write(self, state: PyTree, layer: Layer, site: str, out: Array, **rest: Any) -> PyTree:
    """Returns the state after a write that has its scale. See `Combinator.write`."""
    out = self._scaled(out, self._position(layer, site))
    return super().write(state, layer, site, out, **rest)

  def final(self, state: PyTree) -> Array:
    """Returns the output; sources keep the weights of the last read. See `Combinator.final`."""
    read = super().final(state)
    weights = self.inner.depth_weights(state, self.num_layers, OUTPUT)
    if weights is None or not isinstance(state, DepthState):
      return read
    sources = jnp.stack(state.sources.recent)
    weighed = jnp.sum(lax.stop_gradient(weights)[..., None] * sources, axis=0).astype(read.dtype)
    return weighed + lax.stop_gradient(read - weighed)  # the value is that of the model

  def _scaled(self, out: Array, place: int) -> Array:
    return (out * (1 + self.scales[...][place])).astype(out.dtype)


def norm(decoder: Decoder, hidden: Array) -> Array:
  """Returns the final norm of h [D] without its bias; its scale has no derivative."""
  norm = decoder.final_norm
  if isinstance(norm, Identity):  # the last read has normalised h
    return hidden
  assert norm.scale is not None  # that of a decoder has one
  if decoder.config.norm == "layernorm":
    hidden = hidden - jnp.mean(hidden)
  scale = lax.rsqrt(jnp.mean(hidden * hidden) + decoder.config.norm_eps)
  return hidden * lax.stop_gradient(scale) * norm.scale[...]


def norm_bias(decoder: Decoder) -> Array:
  """Returns the bias of the final norm [D], zero where it has none."""
  bias = getattr(decoder.final_norm, "bias", None)
  return jnp.zeros(decoder.config.d_model) if bias is None else bias[...]
