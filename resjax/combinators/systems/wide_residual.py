"""Wide residuals: streams with learned weights that are the same for all tokens, never mixed."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.base import Array
from resjax.combinators.base import Layer, Stream
from resjax.combinators.checks import check_option
from resjax.combinators.streams import Reading, ResidualStreams
from resjax.kernels.streams import Pending


class WideResidual(ResidualStreams):
  """x = Σ_r σ(a_r) H_r;  H_r ← ρ_r H_r + 2 σ(β_r) f(x), with R streams H_r and numbers a and β.

  Every site has its a [R] and β [R], the same for all tokens. The static arm for systems of several
  streams: it has their width, and neither mixing nor coefficients that depend on the token. Streams
  start as copies of the embedding; the output is one more read, with a' [R] of its own. ρ is 1, or
  with max_forget m learned as well, ρ_r = 1 − m σ(−c_r).

  State: (R + 1) D values and R (R + 1) coefficients per token. Parameters: R (2 L · sites + 1), and
  with max_forget R (3 L · sites + 1). At init every read is the mean of the streams, and the β of a
  site are spaced evenly over ±write_spread. Then the mean of 2 σ(β) is 1, so that up to ρ the mean
  of the streams is the stream of `standard`; small differences of writes let the streams part.

  Megatron-Core has it for Nemotron and Mistral models, without retention by default; no figures on
  quality are public.

  Args:
    num_streams: R, at least 2.
    write_spread: the largest β at init, at least 0; with 0 streams stay equal at first.
    max_forget: m, in [0, 1); 0 keeps the streams whole, Megatron-Core proposes 0.1.
    retention: ρ at init where streams forget, in (1 − max_forget, 1).
    implementation: of `stream_read`; `auto` takes the best that can run.

  Raises:
    ValueError: an option out of range.

  Source: StreamwiseSigmoidWideResidualConnection in Megatron-Core, NVIDIA/Megatron-LM #6716.
  """

  per_layer: tuple[str, ...] = ("read_logit", "write_logit")

  def __init__(
    self, *, write_spread: float = 0.01, max_forget: float = 0.0, retention: float = 0.999,
    **options: Any,
  ):  # fmt: skip
    super().__init__(**options)
    streams, sites = self.num_streams, (self.num_layers, len(self.sites))
    check_option("num_streams", streams, streams >= 2, "num_streams >= 2")
    check_option("write_spread", write_spread, 0 <= write_spread < math.inf, "write_spread >= 0")
    check_option("max_forget", max_forget, 0 <= max_forget < 1, "0 <= max_forget < 1")
    self.max_forget, self.equals_standard_at_init = max_forget, max_forget == 0
    mean = -math.log(streams - 1)  # the logit of 1 / R
    spread = jnp.linspace(-write_spread, write_spread, streams)
    self.read_logit = nnx.Param(jnp.full((*sites, streams), mean))
    self.write_logit = nnx.Param(jnp.broadcast_to(spread, (*sites, streams)))
    self.final_logit = nnx.Param(jnp.full(streams, mean))
    if max_forget:
      allowed = f"between {1 - max_forget:g} and 1 with max_forget={max_forget}"
      check_option("retention", retention, 1 - max_forget < retention < 1, allowed)
      forgets = (1 - retention) / max_forget
      kept = math.log((1 - forgets) / forgets)
      self.retention_logit = nnx.Param(jnp.full((*sites, streams), kept))
      self.per_layer += ("retention_logit",)

  def reading(self, layer: Layer, site: str) -> Reading:
    read, write = (
      jax.nn.sigmoid(self._row(p, layer, site)) for p in (self.read_logit, self.write_logit)
    )
    kept = None
    if self.max_forget:
      forgets = jax.nn.sigmoid(-self._row(self.retention_logit, layer, site))
      kept = jnp.diag(1 - self.max_forget * forgets)
    return Reading(None, (read, kept, 2 * write), _given)

  def final(self, state: Pending) -> Stream:
    read = jax.nn.sigmoid(self.final_logit[...])
    return self._stream_read(state, Reading(None, (read, None, jnp.zeros_like(read)), _given))[0]


def _given(
  products: Array | None, mean_squares: Array | None, parameters: tuple[Array, Array | None, Array]
) -> tuple[Array, Array | None, Array]:
  """Returns p, M and b, which no token changes."""
  return parameters
