"""Passes of a decoder over a text: as it is, without some layers, with two exchanged, in reverse.

What `resjax.study.analysis.depth_probes` measures is made of their sums over tokens of each row.
The numbers of layers are arguments of a few compiled programs.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from resjax.base import Array, PyTree
from resjax.combinators import TokenContext
from resjax.data import MeasuredText
from resjax.models import Decoder, SiteVisit, loss_sums
from resjax.study.analysis import depth_paths

PER_GRADIENT = 3  # forward passes that a forward and a reverse pass cost
_EPS = 1e-8  # the least norm of an update by which a change is divided
_LOSS_CHUNK = 1024  # Tokens per data shard whose logits exist at a time.

Progress = Callable[[int, int], None]
"""A function that is called as progress(done, total)."""


@dataclasses.dataclass(frozen=True)
class Whole:
  """Sums over the tokens of each row of the model as it is, with the rows of all batches.

  Attributes:
    angles: of the angles between states, over π [L + 1, L + 1, rows].
    mixes: the mixing matrices of each layer and token [L, R, R, rows, T], or None.
    here: which tokens are no padding [rows, T].
    nats: of the losses [rows].
    tokens: the number of targets [rows].
  """

  angles: np.ndarray
  mixes: np.ndarray | None
  here: np.ndarray
  nats: np.ndarray
  tokens: np.ndarray

  @property
  def seen(self) -> np.ndarray:
    """The number of tokens [rows]."""
    return self.here.sum(axis=-1)


class Passes:
  """The compiled passes of one decoder over one text.

  Args:
    decoder: the decoder, of which `depth_paths.check_supported` holds.
    text: the text.
    passes: how many passes there will be, for the progress.
    progress: is called after every batch of every pass.
  """

  def __init__(self, decoder: Decoder, text: MeasuredText, passes: int, progress: Progress):
    self._layout, self._depth = decoder.layout, decoder.combinator.num_layers
    self._batches = [decoder.layout.split(batch) for batch in text.batches]
    self._total, self._done, self._progress = passes * len(self._batches), 0, progress
    self._states: list[Array] = []  # [L + 1, k, B, T, D] of every batch
    graphdef, self._parameters = nnx.split(decoder)
    small = functools.partial(jax.jit, out_shardings=decoder.layout.everywhere)

    def arranged(parameters: PyTree, order: Array, keep: Array) -> Decoder:
      return depth_paths.rearranged(nnx.merge(graphdef, parameters), order, keep)

    @jax.jit
    def as_arranged(parameters: PyTree, batch: Mapping[str, Array], *where: Array) -> tuple:
      return traced(arranged(parameters, *where), batch)

    @small
    def nats(parameters: PyTree, batch: Mapping[str, Array], *where: Array) -> Array:
      model = arranged(parameters, *where)
      hidden = model(batch["inputs"], batch["segment_ids"], batch["positions"])
      return loss_sums(model, hidden, batch, _LOSS_CHUNK, by_row=True).nats

    @small
    def products(parameters: PyTree, batch: Mapping[str, Array], states: Array, v: Array) -> Array:
      return _products(nnx.merge(graphdef, parameters), batch, states, v)

    self._traced, self._nats, self._products = as_arranged, nats, products
    self._angles, self._changes = small(_angles), small(_changes)
    self._everywhere = small(lambda tree: tree)

  def whole(self) -> Whole:
    """Returns what the model as it is does, and keeps its states."""
    found: list[dict] = []
    for batch in self._batches:
      states, mixes, sums = self._run(self._traced, batch, *self._where())
      self._states.append(states)
      here = batch["segment_ids"] > 0
      one = {"angles": self._angles(states, here), "mixes": mixes, "here": here}
      found.append(self._fetched(one | {"nats": sums.nats, "tokens": sums.tokens}))
    axes = {"angles": -1, "mixes": -2, "here": 0, "nats": 0, "tokens": 0}
    joined = {
      name: None if found[0][name] is None else np.concatenate([one[name] for one in found], axis)
      for name, axis in axes.items()
    }
    return Whole(**joined)  # type: ignore[arg-type]

  def without_each(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the changes C [L, L, rows] without each layer, and the nats [L, rows]."""
    changes, nats = [], []
    for layer in range(self._depth):
      where, parts = self._where(removed=[layer]), []
      for batch, states in zip(self._batches, self._states, strict=True):
        new, _, sums = self._run(self._traced, batch, *where)
        changed = self._changes(new, states, batch["segment_ids"] > 0)
        parts.append(self._fetched({"changes": changed, "nats": sums.nats}))
      changes.append(np.concatenate([part["changes"] for part in parts], axis=-1))
      nats.append(np.concatenate([part["nats"] for part in parts]))
    return np.stack(changes), np.stack(nats)

  def without(self, removed: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the nats without some layers [rows]."""
    return self._losses(self._where(removed=removed))

  def swapped(self, i: int, j: int) -> np.ndarray:
    """Returns the nats where two layers change places [rows]."""
    order = np.arange(self._depth)
    order[[i, j]] = order[[j, i]]
    return self._losses(self._where(order=order))

  def products(self, vectors: int, seed: int) -> np.ndarray:
    """Returns Σ_t (J − I)ᵀ v over the tokens of each row [vectors, L, rows, k, D]."""
    shape = self._states[0].shape
    found = []
    for v in signs(vectors, shape[1], shape[-1], seed):
      placed = self._layout.copy(v)
      parts = []
      for batch, states in zip(self._batches, self._states, strict=True):
        run = functools.partial(self._products, self._parameters, batch, states, placed)
        parts.append(jax.device_get(self._run_passes(run, PER_GRADIENT)))
      found.append(np.concatenate(parts, axis=1))
    return np.stack(found).astype(np.float64)

  def _losses(self, where: tuple[Array, Array]) -> np.ndarray:
    parts = [jax.device_get(self._run(self._nats, batch, *where)) for batch in self._batches]
    return np.concatenate(parts).astype(np.float64)

  def _where(
    self, order: np.ndarray | None = None, removed: Sequence[int] | np.ndarray = ()
  ) -> tuple[Array, Array]:
    keep = np.ones(self._depth, bool)
    keep[list(removed)] = False
    places = np.arange(self._depth) if order is None else order
    return self._layout.copy(places.astype(np.int32)), self._layout.copy(keep)

  def _run(self, program: Callable, *arguments: PyTree) -> PyTree:
    return self._run_passes(functools.partial(program, self._parameters, *arguments), 1)

  def _run_passes(self, run: Callable[[], PyTree], passes: int) -> PyTree:
    found = jax.block_until_ready(run())
    self._done += passes
    self._progress(self._done, self._total)
    return found

  def _fetched(self, arrays: Mapping[str, Array | None]) -> dict:
    """Returns arrays of all processes in float64, and masks as they are."""
    fetched = jax.device_get(self._everywhere(dict(arrays)))
    return {
      name: None if a is None else a if a.dtype == bool else np.asarray(a, np.float64)
      for name, a in fetched.items()
    }


def signs(vectors: int, streams: int, d_model: int, seed: int) -> np.ndarray:
  """Returns vectors of random signs, 1 or -1, float32 [vectors, k, 1, 1, D]."""
  shape = vectors, streams, 1, 1, d_model
  return np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), shape)


def traced(decoder: Decoder, batch: Mapping[str, Array]) -> tuple:
  """Returns the states [L + 1, k, B, T, D], the mixes [L, R, R, B, T] or None, and the losses."""
  carries = decoder.combinator.strategy == "carry"
  of_layer = depth_paths.state_after if carries else depth_paths.state_before

  def collect(visits: Sequence[SiteVisit], _: PyTree) -> tuple[Array, Array | None]:
    return of_layer(visits), depth_paths.layer_mix(visits)

  tokens = batch["inputs"], batch["segment_ids"], batch["positions"]
  run = decoder.probe(collect, None, *tokens)
  states, mixes = run.layers
  if carries:
    x = decoder.embed(tokens[0], tokens[2])
    start = decoder.combinator.init(x, TokenContext(tokens[1]))
    ends: tuple[Array, ...] = (depth_paths.carried(decoder.combinator, start)[None], states)
  else:
    ends = run.embedded[None, None], states[1:], run.output[None, None]
  sums = loss_sums(decoder, decoder.final_norm(run.output), batch, _LOSS_CHUNK, by_row=True)
  return jnp.concatenate(ends), mixes, sums


def _products(decoder: Decoder, batch: Mapping[str, Array], states: Array, v: Array) -> Array:
  """Returns Σ_t (J − I)ᵀ v over the tokens of each row [L, rows, k, D]."""
  here = (batch["segment_ids"] > 0)[None, :, :, None]
  probe = jnp.broadcast_to(v, states.shape[1:]) * here

  def total(moved: Array) -> Array:
    model = depth_paths.differentiated(decoder, probe.astype(states.dtype), moved)
    hidden = model(batch["inputs"], batch["segment_ids"], batch["positions"])
    return jnp.sum(hidden.astype(jnp.float32))

  gradient = jax.grad(total)(jnp.zeros_like(states[1:]))
  apart = gradient.astype(jnp.float32) - probe
  return jnp.moveaxis(jnp.sum(apart * here, axis=3), 1, 2)


def _norm(x: Array) -> Array:
  """Returns the norms over all streams of vectors [..., k, B, T, D]."""
  return jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32)), axis=(-4, -1)))


def _angles(states: Array, here: Array) -> Array:
  """Returns the sums of angles / π over the tokens of each row [P, P, B].

  The angle of unit vectors is 2 atan2(‖u − v‖, ‖u + v‖), which is exact for small ones, too.
  """
  unit = states / jnp.maximum(_norm(states), 1e-30)[:, None, :, :, None]

  def of(one: Array) -> Array:
    angle = 2 * jnp.arctan2(_norm(unit - one), _norm(unit + one))
    return jnp.sum(angle * here, axis=-1) / jnp.pi

  return lax.map(of, unit)


def _changes(new: Array, old: Array, here: Array) -> Array:
  """Returns the sums of ‖u' − u‖ / max(‖u‖, eps) over the tokens of each row [L, B]."""
  new, old = (x.astype(jnp.float32) for x in (new, old))
  update = old[1:] - old[:-1]
  change = _norm(new[1:] - new[:-1] - update) / jnp.maximum(_norm(update), _EPS)
  return jnp.sum(change * here, axis=-1)
