"""How the loss changes, to first order, where the residual path of a model is attenuated."""

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import NOT_ASKED, Array, PyTree
from resjax.base.sharding import Layout
from resjax.data import MeasuredText
from resjax.models import Decoder, loss_sums
from resjax.study.analysis.path_intervention import attenuate, check_supported
from resjax.study.analysis.totals import RowSums

_LOSS_CHUNK = 256  # Tokens per data shard whose logits exist at a time.


def slopes(decoder: Decoder, text: MeasuredText) -> tuple[np.ndarray, np.ndarray]:
  """Returns the slopes of the loss in the logarithm of each factor α, with standard errors.

  The slope of a site is ∂loss/∂ln α at α = 1, where the site computes x ← α x + f(x): the nats per
  token by which the loss grows with α, so that an attenuation to α = 1 − ε changes it by −ε times
  the slope. One reverse pass gives all sites. Each row of tokens has factors of its own, whose
  slopes differ from row to row; the standard errors come from that.

  Args:
    decoder: a decoder with a combinator of `resjax.study.analysis.path_intervention.SUPPORTED`.
    text: the text to evaluate on.

  Returns:
    The slopes and their standard errors, float64 [L, sites] each; the errors are NaN where the text
    has one row.

  Raises:
    ValueError: The residual path is not a single stream, nor a list of sources.
  """
  check_supported(decoder)
  layout, combinator = decoder.layout, decoder.combinator
  graphdef, state = nnx.split(decoder)

  @functools.partial(jax.jit, out_shardings=layout.everywhere)
  def by_row(state: PyTree, batch: Mapping[str, Array]) -> Array:
    rows = batch["inputs"].shape[0]
    shape = combinator.num_layers, len(combinator.sites), rows, 1, 1
    ones = layout.constrain(jnp.ones(shape), None, None, "batch", None, None)

    def nats(factors: Array) -> Array:
      model = attenuate(nnx.merge(graphdef, state), factors)
      hidden = model(batch["inputs"], batch["segment_ids"], batch["positions"])
      return loss_sums(model, hidden, batch, _LOSS_CHUNK).nats

    return jax.grad(nats)(ones)[..., 0, 0]

  parts = []
  for batch in single_rows(text, layout):
    found = np.asarray(by_row(state, layout.split(batch)), np.float64)
    parts.append(RowSums.of(found[..., None, :], num_asked(batch, axis=-1)[None]))
  total = functools.reduce(RowSums.__add__, parts)
  return total.mean()[..., 0], total.standard_error()[..., 0]


def single_rows(text: MeasuredText, layout: Layout) -> Sequence[Mapping[str, np.ndarray]]:
  """Returns the batches of a text cut into batches of one row for each part of the batch axis."""
  shards, found = layout.num_shards("batch"), []
  for batch in text.batches:
    count = len(batch["inputs"])
    size = shards if count % shards == 0 else count
    for first in range(0, count, size):
      found.append({name: array[first : first + size] for name, array in batch.items()})
  return found


def num_asked(batch: Mapping[str, np.ndarray], axis: int | None = None) -> np.ndarray:
  """Returns the number of tokens of a batch of which a next one is asked for, along an axis."""
  return np.sum((batch["segment_ids"] != 0) & (batch["targets"] != NOT_ASKED), axis=axis)
