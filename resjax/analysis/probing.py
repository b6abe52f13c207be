"""Sums along depth over the tokens of one batch: a pure function with fixed shapes, for jit."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from resjax.analysis.alignment import READINGS, Position
from resjax.analysis.divergence import kl_sums
from resjax.analysis.groups import asked, group_weights
from resjax.analysis.lens import Lens, Seen, grouped
from resjax.combinators.base import OUTPUT, Combinator
from resjax.models.decoder import Decoder, Probed
from resjax.models.depth import SiteVisit
from resjax.typing import Array, PyTree

EVERY = ("layer", "site")
PROBED = ("inputs", "segment_ids", "positions")  # the arrays of a batch that are read


@dataclasses.dataclass(frozen=True)
class ProbeConfig:
  """What is looked at.

  Every depth position and reading costs one output head per token; the rest is little beside it.

  Attributes:
    every: a depth position after every `layer`, or after every `site`.
    readings: `closed`, `read`, or both.
    chunk_size: tokens of one shard whose logits exist at one time.
    kl_every: `kl_to_final` is taken over every n-th position of a row. The final prediction is
      known after the last layer only, so the states of these tokens are kept at all depths, and
      their logits computed again. 0: the power of two that keeps at most one [B, T, D] of them;
      1: every token.
    deciles: whether tokens are grouped by the frequency of the next one, too.

  Raises:
    ValueError: a field out of range.
  """

  every: str = "layer"
  readings: tuple[str, ...] = ("closed",)
  chunk_size: int = 256
  kl_every: int = 0
  deciles: bool = True

  def __post_init__(self):
    """Checks every field."""
    self._check("every", self.every in EVERY, f"one of {', '.join(EVERY)}")
    known = set(self.readings) <= set(READINGS) and self.readings
    self._check("readings", known, f"some of {', '.join(READINGS)}")
    self._check("chunk_size", self.chunk_size >= 1, "at least 1")
    self._check("kl_every", self.kl_every >= 0, "0 (automatic) or positive")

  def _check(self, name: str, ok: bool, allowed: str) -> None:
    if not ok:
      raise ValueError(f"probe: {name}={getattr(self, name)!r} must be {allowed}")

  def positions(self, combinator: Combinator) -> tuple[Position, ...]:
    """Returns the depth positions for a combinator, in order."""
    sites = combinator.sites if self.every == "site" else combinator.sites[-1:]
    layers = range(combinator.num_layers)
    return (
      Position(-1, "embedding"),
      *(Position(layer, site) for layer in layers for site in sites),
    )

  def stride(self, num_positions: int, length: int) -> int:
    """Returns n of `kl_every` for P positions and rows of T tokens."""
    kept = num_positions * len(self.readings)
    return min(self.kl_every or 2 ** (kept - 1).bit_length(), length)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ProbeSums:
  """Sums over the tokens of each row of a batch, P depth positions, G groups; those of rows add.

  Attributes:
    tokens: how many there are [G, B].
    kl_tokens: how many `kl` is over [G, B].
    readings: reading to sums of `lens.PER_TOKEN` [P, K, G, B].
    kl: reading to sums of KL(final prediction ‖ lens) [P, G, B].
    branch: sums of the norms of what was written since the position before [P - 1, G, B].
    depth_weights: of the sites that weigh sources, summed over tokens [L, N]; that of the last
      read is [N].
  """

  tokens: Array
  kl_tokens: Array
  readings: Mapping[str, Array]
  kl: Mapping[str, Array]
  branch: Array
  depth_weights: Mapping[str, Array]


def probe_batch(
  decoder: Decoder,
  batch: Mapping[str, Array],
  counts: Array,
  deciles: Array | None,
  key: Array,
  config: ProbeConfig,
) -> ProbeSums:
  """Runs the decoder once and sums what its probes see.

  Nothing of the size of all layers' states or logits exists: a probe runs inside the scan over
  depth and sums over tokens, chunk by chunk.

  Args:
    decoder: any, sharded or not.
    batch: `inputs`, `segment_ids`, `positions`, [B, T] each; segment 0 is padding.
    counts: [V], how often each token is a next one in the corpus (`next_counts`); shuffled targets
      are drawn by it.
    deciles: [V] of `frequency_deciles`; None: no groups by frequency.
    key: of the random numbers, another one for every batch.
    config: what is looked at.
  """
  of = asked(batch["inputs"], batch["segment_ids"], counts, key)
  lens = Lens(decoder, config.chunk_size)
  seen = lens.seen(of.ids, group_weights(of, deciles))
  probe = _Probe(lens, config, len(config.positions(decoder.combinator)))
  run = decoder.probe(probe, seen, batch["inputs"], batch["segment_ids"], batch["positions"])
  found = {
    reading: _with_end(reading, probe, run, seen, run.layers[reading])
    for reading in config.readings
  }
  final = lens.normed(probe.sample(run.output), seen)
  kl_weights = jnp.moveaxis(probe.sample(jnp.moveaxis(seen.weights, 0, -1)), -1, 0)

  def kl(states):
    logits = functools.partial(lens.logits, seen=seen)
    return kl_sums(logits, final, states, kl_weights, config.chunk_size, decoder.layout)

  weights = run.layers["weights"] | {OUTPUT: _total(run.weights, seen)}
  return ProbeSums(
    tokens=jnp.sum(seen.weights, axis=-1),
    kl_tokens=jnp.sum(kl_weights, axis=-1),
    readings={reading: one["sums"] for reading, one in found.items()},
    kl={reading: kl(one["sample"]) for reading, one in found.items()},
    branch=_flat(run.layers["branch"]),
    depth_weights={site: sums for site, sums in weights.items() if sums is not None},
  )


def _with_end(reading: str, probe: "_Probe", run: Probed, seen: Seen, layers: PyTree) -> PyTree:
  """Joins what was found in the layers and at the end of depth outside of them: [P, ...]."""
  if reading == "closed":
    parts = [_stack([probe.look(run.embedded, seen)]), _flat(layers)]
  else:
    parts = [_flat(layers), _stack([probe.look(run.output, seen)])]
  return jax.tree.map(lambda *rows: jnp.concatenate(rows), *parts)


def _flat(per_layer: PyTree) -> PyTree:
  """[L, positions of a layer, ...] to [P - 1, ...]."""
  return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), per_layer)


def _stack(parts: list[PyTree]) -> PyTree:
  return jax.tree.map(lambda *rows: jnp.stack(rows), *parts)


def _total(weights: Array | None, seen: Seen) -> Array | None:
  """Sums depth weights [N, B, T] over the tokens that count."""
  return None if weights is None else jnp.sum(weights * seen.weights[0], axis=(1, 2))


class _Probe:
  """A `depth.Collect`: readings of the positions of one layer, branch norms and depth weights."""

  def __init__(self, lens: Lens, config: ProbeConfig, num_positions: int):
    self._lens, self._config, self._num_positions = lens, config, num_positions

  def look(self, hidden: Array, seen: Seen) -> dict[str, Array]:
    """Returns the sums of hidden states [B, T, D], and the normalised states that are kept."""
    sample = self._lens.normed(self.sample(hidden), seen)
    return {"sums": self._lens.sums(hidden, seen), "sample": sample}

  def sample(self, x: Array) -> Array:
    """Returns positions n/2, n/2 + n, ... of [B, T, ...]."""
    every = self._config.stride(self._num_positions, x.shape[1])
    whole = x.shape[1] // every * every
    cut = lax.slice_in_dim(x, 0, whole, axis=1)
    return cut.reshape(x.shape[0], -1, every, *x.shape[2:])[:, :, every // 2]

  def __call__(self, visits: Sequence[SiteVisit], seen: Seen) -> dict:
    """Returns readings and branch norms by position of the layer, depth weights by site."""
    by_site = self._config.every == "site"
    ends = [[visit] for visit in visits] if by_site else [visits]
    found = {
      "branch": _stack([self._branch_norm(part, seen) for part in ends]),
      "weights": {visit.site: _total(visit.depth_weights(), seen) for visit in visits},
    }
    readings = self._config.readings
    states = jnp.stack([_state(part, reading) for reading in readings for part in ends])
    looks = lax.map(functools.partial(self.look, seen=seen), states)  # one program for all of them
    split = jax.tree.map(lambda a: a.reshape(len(readings), len(ends), *a.shape[1:]), looks)
    for index, reading in enumerate(readings):
      found[reading] = jax.tree.map(lambda a, i=index: a[i], split)
    return found

  def _branch_norm(self, visits: Sequence[SiteVisit], seen: Seen) -> Array:
    written = sum(visit.out.astype(jnp.float32) for visit in visits)
    return grouped(jnp.sqrt(jnp.sum(written * written, axis=-1)), seen.weights)


def _state(visits: Sequence[SiteVisit], reading: str) -> Array:
  """What stands behind the last visit, or what the first one reads."""
  return visits[-1].closed() if reading == "closed" else visits[0].views["x"]
