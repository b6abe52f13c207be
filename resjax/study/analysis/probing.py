"""Probes of a decoder: a jittable function that sums metrics over the tokens of one batch."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array, PyTree
from resjax.combinators import OUTPUT, Combinator
from resjax.models import Decoder, Probed, SiteVisit, forward_flops_per_token
from resjax.study.analysis.alignment import READINGS, DepthPosition
from resjax.study.analysis.lens import Lens, LensInputs, grouped
from resjax.study.analysis.token_groups import candidates, group_weights

EVERY = ("layer", "site")
PROBED = ("inputs", "segment_ids", "positions")  # The arrays of a batch that are used.


@dataclasses.dataclass(frozen=True)
class ProbeConfig:
  """What the probes of a decoder measure.

  Every depth position and reading costs one output head per token; all else costs little. Readings
  that are the same states, see `reads_the_stream`, are measured once.

  Attributes:
    every: `layer` or `site`: the depth positions are the places behind each of these.
    readings: `closed`, `read`, or both.
    chunk_size: the number of tokens of one shard whose logits exist at a time.
    kl_every: n; `kl_to_final` is a mean over every n-th token of a row. The final prediction is
      known only after the last layer, so the states of these tokens are kept at all depths and
      their logits are computed again. 0 chooses the power of two that keeps at most [B, T, D].
    deciles: whether to group the tokens by the frequency of the next token, too.

  Raises:
    ValueError: A field is out of range.
  """

  every: str = "layer"
  readings: tuple[str, ...] = ("closed",)
  chunk_size: int = 256
  kl_every: int = 0
  deciles: bool = True

  def __post_init__(self):
    """Checks every field."""
    self._check("every", self.every in EVERY, f"one of {', '.join(EVERY)}")
    known = bool(self.readings) and set(self.readings) <= set(READINGS)
    self._check("readings", known, f"some of {', '.join(READINGS)}")
    self._check("chunk_size", self.chunk_size >= 1, "at least 1")
    self._check("kl_every", self.kl_every >= 0, "0 (automatic) or positive")

  def _check(self, name: str, ok: bool, allowed: str) -> None:
    if not ok:
      raise ValueError(f"probe: {name}={getattr(self, name)!r} must be {allowed}")

  def positions(self, combinator: Combinator) -> tuple[DepthPosition, ...]:
    """Returns the depth positions of a combinator, in order."""
    sites = combinator.sites if self.every == "site" else combinator.sites[-1:]
    layers = range(combinator.num_layers)
    return (
      DepthPosition(-1, "embedding"),
      *(DepthPosition(layer, site) for layer in layers for site in sites),
    )

  def flops_per_token(self, decoder: Decoder, length: int) -> float:
    """Returns the FLOPs of the matrix products that probes of rows of `length` tokens T take.

    One output head is part of a forward pass, and the others are P R for P positions and R readings
    that differ, and those of every n-th token once more, with that of the final prediction.
    """
    config, combinator = decoder.config, decoder.combinator
    once = reads_the_stream(combinator, config.dtype)
    measured = dataclasses.replace(self, readings=("closed",)) if once else self
    positions = len(self.positions(combinator))
    states = positions * len(measured.readings)
    heads = states + (states + 1) / measured.stride(positions, length) - 1
    head = 2 * config.vocab_size * config.d_model
    return forward_flops_per_token(config, combinator, length) + heads * head

  def stride(self, num_positions: int, length: int) -> int:
    """Returns the n of `kl_every`, given the number P of positions and the length T of rows."""
    kept = num_positions * len(self.readings)
    return min(self.kl_every or 2 ** (kept - 1).bit_length(), length)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ProbeSums:
  """The sums of metrics over the tokens of each row of a batch, at P positions and for G groups.

  Attributes:
    tokens: the number of tokens [G, B].
    kl_tokens: the number of tokens that `kl` sums over [G, B].
    readings: the sums of the K metrics `lens.PER_TOKEN` for each reading [P, K, G, B].
    kl: the sums of KL(final prediction ‖ lens) for each reading [P, G, B].
    branch: the sums of norms of all that was written since the position before [P - 1, G, B].
    depth_weights: the weights of sources summed over tokens, for each site that has weights
      [L, N], and for the final read [N].
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
  """Runs the decoder once and returns the sums of the metrics.

  The states or logits of all layers never exist together: a probe runs inside the scan over depth
  and sums over tokens chunk by chunk.

  Args:
    decoder: any decoder, sharded or not.
    batch: `inputs`, `segment_ids` and `positions`, [B, T] each; segment 0 is padding.
    counts: the `next_counts` of the corpus [V], by which shuffled targets are drawn.
    deciles: the `frequency_deciles` of the vocabulary [V]; None leaves out the groups by frequency.
    key: the key of the random numbers, a different one for every batch.
    config: what to measure.
  """
  asked = config.readings
  if reads_the_stream(decoder.combinator, decoder.config.dtype):
    config = dataclasses.replace(config, readings=("closed",))
  chosen = candidates(batch["inputs"], batch["segment_ids"], counts, key)
  lens = Lens(decoder, config.chunk_size)
  seen = lens.inputs(chosen.ids, group_weights(chosen, deciles))
  probe = _Probe(lens, config, len(config.positions(decoder.combinator)))
  run = decoder.probe(probe, seen, batch["inputs"], batch["segment_ids"], batch["positions"])
  found = {
    reading: _with_end(reading, probe, run, seen, run.layers[reading])
    for reading in config.readings
  }
  final = lens.normed(probe.sample(run.output), seen)
  kl_weights = jnp.moveaxis(probe.sample(jnp.moveaxis(seen.weights, 0, -1)), -1, 0)
  sums = {reading: one["sums"] for reading, one in found.items()}
  kl = {
    reading: lens.kl_sums(final, one["sample"], kl_weights, seen) for reading, one in found.items()
  }
  weights = run.layers["weights"] | {OUTPUT: _total(run.weights, seen)}
  return ProbeSums(
    tokens=jnp.sum(seen.weights, axis=-1),
    kl_tokens=jnp.sum(kl_weights, axis=-1),
    readings={reading: sums.get(reading, sums[config.readings[0]]) for reading in asked},
    kl={reading: kl.get(reading, kl[config.readings[0]]) for reading in asked},
    branch=_flat(run.layers["branch"]),
    depth_weights={site: sums for site, sums in weights.items() if sums is not None},
  )


def reads_the_stream(combinator: Combinator, dtype: jax.typing.DTypeLike) -> bool:
  """Returns whether the two `READINGS` are the same states, for any parameters and inputs.

  They are where the depth state is one array that starts as the embeddings, and that `read`,
  `final` and `final_after` return as it is. The traces of these methods tell.

  Args:
    combinator: any combinator.
    dtype: of the activations.
  """
  x = jax.ShapeDtypeStruct((1, 1, combinator.d_model), dtype)
  state = jax.eval_shape(combinator.init, x)
  if not isinstance(state, jax.ShapeDtypeStruct):
    return False

  def seen(x: Array, state: Array) -> list[Array]:
    found = [combinator.init(x), combinator.final(state)]
    for layer in range(combinator.num_layers):
      for site in combinator.sites:
        found.append(combinator.read(state, layer, site)[0]["x"])
        found.append(combinator.final_after(state, layer, site))
    return found

  traced = jax.make_jaxpr(seen)(x, state).jaxpr
  start, stream = traced.invars
  return traced.outvars == [start] + [stream] * (len(traced.outvars) - 1)


def _with_end(
  reading: str, probe: "_Probe", run: Probed, inputs: LensInputs, layers: PyTree
) -> PyTree:
  """Joins the sums inside the layers with those at the embedding or at the output [P, ...]."""
  if reading == "closed":
    parts = [_stack([probe.look(run.embedded, inputs)]), _flat(layers)]
  else:
    parts = [_flat(layers), _stack([probe.look(run.output, inputs)])]
  return jax.tree.map(lambda *rows: jnp.concatenate(rows), *parts)


def _flat(per_layer: PyTree) -> PyTree:
  """Turns arrays [L, positions of a layer, ...] into arrays [P - 1, ...]."""
  return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), per_layer)


def _stack(parts: list[PyTree]) -> PyTree:
  return jax.tree.map(lambda *rows: jnp.stack(rows), *parts)


def _total(weights: Array | None, inputs: LensInputs) -> Array | None:
  """Sums depth weights [N, B, T] over the tokens that count, to [N]."""
  return None if weights is None else jnp.sum(weights * inputs.weights[0], axis=(1, 2))


class _Probe:
  """A `depth.Collect`: readings of the positions of one layer, branch norms and depth weights."""

  def __init__(self, lens: Lens, config: ProbeConfig, num_positions: int):
    self._lens, self._config, self._num_positions = lens, config, num_positions

  def look(self, hidden: Array, inputs: LensInputs) -> dict[str, Array]:
    """Returns the sums of hidden states [B, T, D], and the normalised states to keep."""
    sample = self._lens.normed(self.sample(hidden), inputs)
    return {"sums": self._lens.sums(hidden, inputs), "sample": sample}

  def sample(self, x: Array) -> Array:
    """Returns the tokens n/2, n/2 + n, ... of each row of [B, T, ...]."""
    every = self._config.stride(self._num_positions, x.shape[1])
    whole = x.shape[1] // every * every
    cut = lax.slice_in_dim(x, 0, whole, axis=1)
    return cut.reshape(x.shape[0], -1, every, *x.shape[2:])[:, :, every // 2]

  def __call__(self, visits: Sequence[SiteVisit], inputs: LensInputs) -> dict[str, PyTree]:
    """Returns the sums for the positions of one layer, and its depth weights by site."""
    by_site = self._config.every == "site"
    ends = [[visit] for visit in visits] if by_site else [visits]
    found = {
      "branch": _stack([self._branch_norm(part, inputs) for part in ends]),
      "weights": {visit.site: _total(visit.depth_weights(), inputs) for visit in visits},
    }
    readings = self._config.readings
    states = jnp.stack([state_at(part, reading) for reading in readings for part in ends])
    # One program serves all states of the layer.
    looks = lax.map(functools.partial(self.look, inputs=inputs), states)
    split = jax.tree.map(lambda a: a.reshape(len(readings), len(ends), *a.shape[1:]), looks)
    for index, reading in enumerate(readings):
      found[reading] = jax.tree.map(lambda a, i=index: a[i], split)
    return found

  def _branch_norm(self, visits: Sequence[SiteVisit], inputs: LensInputs) -> Array:
    written = sum(visit.out.astype(jnp.float32) for visit in visits)
    return grouped(jnp.sqrt(jnp.sum(written * written, axis=-1)), inputs.weights)


def state_at(visits: Sequence[SiteVisit], reading: str) -> Array:
  """Returns the state closed behind the last visit, or view x of the first visit."""
  return visits[-1].closed() if reading == "closed" else visits[0].views()["x"]
