"""Attenuates the residual path of a decoder and leaves its parameters as they are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax import combinators
from resjax.base import Array, PyTree, wide_dtype
from resjax.combinators import Combinator, Layer
from resjax.models import Decoder
from resjax.study.analysis.wrapped_path import WrappedPath, with_path

# The combinators with one stream to which every site adds: x ← g(a ⊙ x + s ⊙ f), where a and s do
# not depend on x.
STREAMS = ("standard", "attenuation", "gate", "rezero", "layerscale", "deepnorm")
# Those with a list of sources, of which every read is a mixture.
SOURCES = ("attn_res", "block_attn_res")
SUPPORTED = (*STREAMS, *SOURCES)


class AttenuatedPath(WrappedPath):
  """A combinator in which a site adds its output to α[layer, site] x in place of x.

  `standard` becomes x ← α x + f(x), which is `Attenuation` with a factor per layer and site. The
  other combinators in `STREAMS` apply their own rule to the stream times α, in float32 or wider.
  What a branch reads does not change.

  Args:
    inner: the combinator to attenuate, see `check_supported`.
    factors: α [L, sites]; they may be traced, so that one program serves all factors.
  """

  def __init__(self, inner: Combinator, factors: Array):
    super().__init__(inner)
    self.strategy, self.factors = inner.strategy, nnx.Variable(factors)
    # A supported combinator has parameters per layer alone, or none of them.
    self.per_layer = ("factors", "inner") if inner.per_layer else ("factors",)

  def write(self, state: PyTree, layer: Layer, site: str, out: Array, **rest: Any) -> PyTree:
    """See `Combinator.write`."""
    stream = self._row(self.factors, layer, site) * state.astype(wide_dtype(state))
    written = self.inner.write(stream, layer, site, out, **rest)
    return written.astype(jnp.promote_types(state.dtype, out.dtype))


class AttenuatedSources(WrappedPath):
  """A combinator of `SOURCES` in which a site multiplies all that is older than its output by α.

  Every source, and the running sum of a block, becomes α times itself before the output is added.
  The norm of keys keeps the weights of reads, so that where these are uniform, as in an untrained
  model, the function is that of `standard` with x ← α x + f(x).

  Args:
    inner: the combinator to attenuate, see `check_supported`.
    factors: α [L, sites]; they may be traced.
  """

  def __init__(self, inner: Combinator, factors: Array):
    super().__init__(inner)
    self.factors = nnx.Variable(factors)

  def write(
    self, state: PyTree, layer: Layer, site: str, out: Array, *, tape: Any = None, **rest: Any
  ) -> PyTree:
    """See `Combinator.write`."""
    factor = self.factors[...][layer, self.sites.index(site)]

    def scale(value: Any) -> Any:
      is_state = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)
      return (factor * value.astype(wide_dtype(value))).astype(value.dtype) if is_state else value

    state, tape = jax.tree.map(scale, (state, tape))
    return self.inner.write(state, layer, site, out, tape=tape, **rest)


def attenuate(decoder: Decoder, factors: Array | np.ndarray) -> Decoder:
  """Returns a decoder with the same parameters, and α [L, sites] on its residual path.

  Raises:
    ValueError: See `check_supported`.
  """
  check_supported(decoder)
  placed = jnp.asarray(factors, jnp.float32)
  changed = nnx.merge(*nnx.split(decoder))
  if decoder.config.residual.name in SOURCES:
    return with_path(changed, AttenuatedSources(changed.combinator, placed))
  changed.combinator = AttenuatedPath(changed.combinator, placed)
  return changed


def check_supported(decoder: Decoder) -> None:
  """Checks that the residual path of a decoder is one stream, or a list of sources.

  Raises:
    ValueError: It is neither, or later sites of a layer do not read what earlier ones wrote.
  """
  combinator, name = decoder.combinator, decoder.config.residual.name
  allowed = f"it is defined for {', '.join(SUPPORTED)}"
  if type(combinator) not in [combinators.get(supported) for supported in SUPPORTED]:
    raise ValueError(
      f"attenuating the residual path of residual.name={name!r} is not defined: it is neither one "
      f"stream to which sites add, by weights that do not depend on it, nor a list of outputs; "
      f"{allowed}"
    )
  scope = getattr(combinator, "scope", "sublayer")
  if scope != "sublayer":
    raise ValueError(
      f"attenuating the residual path of {name!r} with scope={scope!r} is not defined, "
      "because later sites of a layer read another stream than the one that it leaves; "
      f"{allowed}, with scope='sublayer'"
    )


def cut_factors(decoder: Decoder, layer: int, sites: tuple[str, ...], alpha: float) -> np.ndarray:
  """Returns the factors [L, sites] of a cut: alpha at some sites of one layer, 1 elsewhere."""
  combinator = decoder.combinator
  factors = np.ones((combinator.num_layers, len(combinator.sites)), np.float32)
  factors[layer, [site in sites for site in combinator.sites]] = alpha
  return factors
