"""The factors by which the sites of a decoder multiply the stream, and where they attenuate it.

A system with such factors writes x ← α x + f(x) at every site. Factors of different layers are not
comparable as they stand, since later ones rescale what earlier sites wrote; so there is the weight
of every write in the final state, too.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import Array, PyTree
from resjax.models import Decoder, SiteVisit
from resjax.study.analysis.alignment import Values, matrix
from resjax.study.analysis.probing import PROBED
from resjax.study.statistics import mean_interval

LEAST_ATTENUATION = 0.05  # With less in all layers together there is nothing to locate.
_MOST_SEEDS = 0.8  # the share of models in which the last layer has to attenuate most


@dataclasses.dataclass(frozen=True)
class StreamFactors:
  """The factors α of every site, over the tokens of a text.

  Attributes:
    sites: the S sites of a layer.
    means: the means of α over tokens and channels, float64 [L, S].
    deviations: its standard deviations over tokens and channels, float64 [L, S].
  """

  sites: tuple[str, ...]
  means: np.ndarray
  deviations: np.ndarray

  @property
  def of_layers(self) -> np.ndarray:
    """α_l, the product of the mean factors of the sites of a layer [L]."""
    return self.means.prod(axis=1)

  @property
  def attenuations(self) -> np.ndarray:
    """a_l = max(0, 1 − α_l) [L], the share of its input that a layer takes away."""
    return np.maximum(0, 1 - self.of_layers)

  @property
  def write_weights(self) -> np.ndarray:
    """The weight of each write in the final state [L, S]: the product of all later factors."""
    return np.append(self._products()[1:], 1.0).reshape(self.means.shape)

  @property
  def embedding_weight(self) -> float:
    """The weight of the embedding in the final state: the product of all factors."""
    return float(self._products()[0])

  @property
  def last_share(self) -> float | None:
    """a_{L−1} / Σ a_l; None if Σ a_l < 0.05, so that there is nothing to locate."""
    total = self.attenuations.sum()
    return float(self.attenuations[-1] / total) if total >= LEAST_ATTENUATION else None

  def _products(self) -> np.ndarray:
    """Returns for each site the product of its factor and all later ones [L S]."""
    return np.cumprod(self.means.ravel()[::-1])[::-1]


@dataclasses.dataclass(frozen=True)
class StoredFactors:
  """`StreamFactors` in the form in which JSON stores them."""

  sites: tuple[str, ...]
  means: list[Values]
  deviations: list[Values]

  def factors(self) -> StreamFactors:
    """Returns the factors that were stored.

    Raises:
      ValueError: they have another size.
    """
    size = len(self.means), len(self.sites)
    found = (
      matrix(getattr(self, name), *size, f"factors.{name}") for name in ("means", "deviations")
    )
    return StreamFactors(self.sites, *found)


def measure(
  decoder: Decoder, batches: Iterable[Mapping[str, np.ndarray]], *, batch_size: int
) -> StreamFactors | None:
  """Returns the factors of a decoder over the tokens of a text; None if it has none.

  Args:
    decoder: any decoder, sharded or not.
    batches: the rows of this process, as in `resjax.study.analysis.measurement.measure`.
    batch_size: B, the number of rows of a batch over all processes.
  """
  layout = decoder.layout
  graphdef, state = nnx.split(decoder)

  @functools.partial(jax.jit, out_shardings=layout.everywhere)
  def step(state: PyTree, batch: Mapping[str, Array]) -> tuple[Array, Array | None]:
    return _batch_moments(nnx.merge(graphdef, state), batch)

  counts, moments = [], []
  for batch in batches:
    arrays = {name: np.asarray(batch[name], np.int32) for name in PROBED}
    count, found = jax.device_get(step(state, layout.put(arrays, batch_size=batch_size)))
    if found is None:
      return None
    counts.append(float(count))
    moments.append(np.asarray(found, np.float64))
  first, second = np.moveaxis(np.stack(moments), -1, 0)
  mean = np.average(first, axis=0, weights=counts)
  variance = np.average(second + (first - mean) ** 2, axis=0, weights=counts)
  return StreamFactors(decoder.combinator.sites, mean, np.sqrt(variance))


def _batch_moments(decoder: Decoder, batch: Mapping[str, Array]) -> tuple[Array, Array | None]:
  """Returns the number of tokens, and mean and variance of α over them and channels [L, S, 2]."""
  counted = batch["segment_ids"] > 0
  weights = counted.astype(jnp.float32) / jnp.sum(counted)

  def probe(visits: Sequence[SiteVisit], weights: Array) -> Array | None:
    factors = [visit.stream_factor() for visit in visits]
    known = [_moments(factor, weights) for factor in factors if factor is not None]
    return jnp.stack(known) if known else None

  run = decoder.probe(probe, weights, batch["inputs"], batch["segment_ids"], batch["positions"])
  return jnp.sum(counted), run.layers


def _moments(factor: Array, weights: Array) -> Array:
  """Returns the mean and the variance of factors over weighed tokens and over channels [2]."""
  shape = jnp.broadcast_shapes(factor.shape, (*weights.shape, 1))
  factors = jnp.broadcast_to(factor.astype(jnp.float32), shape)
  mean = jnp.sum(weights * jnp.mean(factors, axis=-1))
  variance = jnp.sum(weights * jnp.mean((factors - mean) ** 2, axis=-1))
  return jnp.stack([mean, variance])


@dataclasses.dataclass(frozen=True)
class Concentration:
  """Where several models, such as the seeds of one arm, attenuate the stream.

  Attributes:
    shares: the share of each model's attenuation that its last layer has; None: it has too little.
    last_is_largest: the number of models of which the last layer attenuates most.
    interval: the 95 % interval of the mean share; None without two shares.
    verdict: what that says.
  """

  shares: tuple[float | None, ...]
  last_is_largest: int
  interval: tuple[float, float] | None
  verdict: str


def concentration(models: Sequence[StreamFactors]) -> Concentration:
  """Returns whether models attenuate the stream at their last layer.

  `concentrated` needs a lower end of the interval above 2/L, twice an even share, and the last
  layer as the largest in 4 of 5 models. `not concentrated`: the interval reaches down to 1/L.
  `nothing to locate`: a model attenuates by less than 0.05 in all layers together.

  Args:
    models: the factors of models with the same number of layers L.
  """
  layers = len(models[0].means)
  shares = tuple(one.last_share for one in models)
  largest = sum(
    share is not None and int(np.argmax(one.attenuations)) == layers - 1
    for one, share in zip(models, shares, strict=True)
  )
  known = [share for share in shares if share is not None]
  interval = mean_interval(known)
  if len(known) < len(models):
    verdict = "nothing to locate"
  elif interval is not None and interval[0] <= 1 / layers:
    verdict = "not concentrated"
  elif interval is not None and interval[0] > 2 / layers and largest >= _MOST_SEEDS * len(models):
    verdict = "concentrated"
  else:
    verdict = "undecided"
  return Concentration(shares, largest, interval, verdict)
