"""How the loss changes, to first order, where the residual path of a model is attenuated."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import Array, PyTree
from resjax.data import MeasuredText
from resjax.models import Decoder, loss_sums
from resjax.study.analysis.path_intervention import attenuate, check_supported
from resjax.study.analysis.totals import RowSums

_LOSS_CHUNK = 256  # Tokens per data shard whose logits exist at a time.


def slopes(decoder: Decoder, text: MeasuredText) -> tuple[np.ndarray, np.ndarray]:
  """Returns the slopes of the loss in the logarithm of each factor α, with standard errors.

  The slope of a site is ∂loss/∂ln α at α = 1, where the site computes x ← α x + f(x): the nats per
  token by which the loss grows with ln α, so that an attenuation to α = 1 − ε changes it by −ε
  times the slope, up to terms of ε² that may be larger from ε of a few percent on. One reverse pass
  gives all sites. Each row of tokens has factors of its own, whose slopes differ from row to row;
  the standard errors come from that.

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
  def by_row(state: PyTree, batch: Mapping[str, Array]) -> tuple[Array, Array]:
    rows = batch["inputs"].shape[0]
    shape = combinator.num_layers, len(combinator.sites), rows, 1, 1
    ones = layout.constrain(jnp.ones(shape), None, None, "batch", None, None)

    def nats(factors: Array) -> tuple[Array, Array]:
      model = attenuate(nnx.merge(graphdef, state), factors)
      hidden = model(batch["inputs"], batch["segment_ids"], batch["positions"])
      sums = loss_sums(model, hidden, batch, _LOSS_CHUNK, by_row=True)
      return jnp.sum(sums.nats), sums.tokens

    gradient, tokens = jax.grad(nats, has_aux=True)(ones)
    return gradient[..., 0, 0], tokens

  parts = []
  for batch in text.batches:
    found, tokens = jax.device_get(by_row(state, layout.split(batch)))
    parts.append(RowSums.of(np.asarray(found, np.float64)[..., None, :], tokens[None]))
  total = functools.reduce(RowSums.__add__, parts)
  return total.mean()[..., 0], total.standard_error()[..., 0]
