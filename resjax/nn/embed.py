"""Token and position embeddings."""

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.base import Array
from resjax.base.sharding import Layout, take_rows
from resjax.nn.keys import Keys

# TPUs keep narrower rows as if they were so wide.
_LANES = 128


class Embedding(nnx.Module):
  """x_t = s E[token_t] (+ P[position_t]) with s = 1 or √D, rounded to the dtype of the result.

  Where D of a table is split over devices, each of them looks up its columns for the tokens of all,
  and they exchange what they found. To gather the table, and to scatter its gradient, would mostly
  take more bytes, since a device rarely has more tokens than there are rows; but it is done where a
  device has only few columns.

  Args:
    vocab_size: the size of the vocabulary V.
    d_model: the model width D.
    max_positions: the number of rows of P; 0: no P, because positions are rotary, in attention.
    scaled: whether s = √D, as in Gemma (arXiv 2403.08295).
    std: the standard deviation of both tables at init.
    dtype: the dtype of the result.
    layout: the mesh and sharding rules of the activations.
    rngs: the source of the initial values.
  """

  def __init__(
    self, vocab_size: int, d_model: int, *, max_positions: int, scaled: bool = False,
    std: float, dtype: jax.typing.DTypeLike, layout: Layout, rngs: nnx.Rngs,
  ):  # fmt: skip
    init = nnx.initializers.normal(std)
    self.dtype, self.layout, self.scaled = dtype, layout, scaled
    keys, axes = Keys(rngs), ("vocab", "embed_param")
    self.embedding = nnx.Param(init(keys("embedding").params(), (vocab_size, d_model)), axes=axes)
    places = keys("positions").params()
    table = init(places, (max_positions, d_model)) if max_positions else None
    self.positions = None if table is None else nnx.Param(table, axes=(None, "embed_param"))

  @jax.named_scope("embedding")
  def __call__(self, tokens: Array, positions: Array) -> Array:
    """Maps tokens and positions [B, T] to [B, T, D]."""
    x = self._rows(self.embedding, "vocab", tokens)
    if self.scaled:
      x = x * jnp.asarray(x.shape[-1] ** 0.5, x.dtype)
    return x if self.positions is None else x + self._rows(self.positions, None, positions)

  def _rows(self, parameter: nnx.Param, axis: str | None, index: Array) -> Array:
    """Returns the rows [B, T, D] of a table [axis, D] that an index [B, T] names."""
    width = parameter.shape[-1] // self.layout.num_shards("embed_param")
    exchanged = [*self.layout.by_columns()] if width >= _LANES else []
    layouts = [*exchanged, self.layout]
    table = parameter[...] if exchanged else self.layout.constrain(parameter[...], axis, "embed")
    rows = take_rows(table, layouts[0].constrain(index, "batch", "tokens"))
    # The cast comes after the lookup, so that the gradient of a frequent token, which is a long
    # sum, is summed in float32.
    rows = rows.astype(self.dtype)
    for layout in layouts:
      rows = layout.constrain(rows, "batch", "tokens", "embed")
    return rows
