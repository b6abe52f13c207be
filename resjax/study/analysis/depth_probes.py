"""What the layers of a decoder do to its depth states, and what happens without them.

The probes of DepthBench, of depth states z_0 (the embedding) to z_L, which are what a layer hands
on: all streams of a token together, or of attention residuals what the next boundary reads; see
`resjax.study.analysis.depth_paths`, which also says what a layer that is left out is. Means are
over tokens, intervals over rows of tokens.

Source: DepthBench, arXiv 2609.32534, and its scripts (github.com/keyu-wang-2002/DepthBench,
  analysis/); the effective rank is that of Roy and Vetterli, EUSIPCO 2007, since the scripts have
  none.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax import nnx
from jax import lax

from resjax.base import Array, PyTree
from resjax.combinators import TokenContext
from resjax.data import MeasuredText
from resjax.models import Decoder, SiteVisit, forward_flops_per_token, loss_sums
from resjax.study.analysis import depth_paths
from resjax.study.analysis.totals import RowSums
from resjax.study.statistics import t_quantile

PROBES = ("angular", "causal", "permutation", "pruning", "rank", "jacobian")
PAIRS = ("neighbours", "all")
_EPS = 1e-8  # the least norm of an update by which a change is divided
_LOSS_CHUNK = 1024  # Tokens per data shard whose logits exist at a time.
_PER_GRADIENT = 3  # forward passes that a forward and a reverse pass cost

Progress = Callable[[int, int], None]
"""A function that is called as progress(done, total)."""


@dataclasses.dataclass(frozen=True)
class Measured:
  """Means with their 95% intervals over rows of tokens.

  Attributes:
    mean: [...]; NaN where nothing is defined.
    half: half the widths of the intervals [...]; NaN for a text of one row.
  """

  mean: np.ndarray
  half: np.ndarray

  @classmethod
  def of(cls, values: np.ndarray, counts: np.ndarray) -> "Measured":
    """Returns the ratios of sums over rows, Σ s / Σ n, of s [..., rows] and n [rows]."""
    sums = RowSums.of(values[..., None, :], counts[None])
    quantile = t_quantile(int(np.sum(counts > 0)) - 1)
    return cls(sums.mean()[..., 0], quantile * sums.standard_error()[..., 0])

  def masked(self, chosen: npt.ArrayLike) -> "Measured":
    """Returns the means at chosen places, and NaN elsewhere."""
    return Measured(*(np.where(chosen, values, np.nan) for values in (self.mean, self.half)))


@dataclasses.dataclass(frozen=True)
class DepthProbes:
  """The probes of one model on one text; None stands for what is not measured.

  Attributes:
    model: the name of the model.
    corpus: the name of the text.
    residual: the name of its residual system.
    num_layers: L.
    num_tokens: the number of targets of the losses.
    num_rows: the number of rows, over which intervals are.
    loss: L, in nats per token.
    angular: d(i, j) = mean arccos(cos(z_i, z_j)) / π for i < j [L + 1, L + 1].
    causal: C(s, l) = mean ‖u'_l − u_l‖ / max(‖u_l‖, 1e-8) for l > s, where u_l = z_{l+1} − z_l and
      u' is u without layer s [L, L].
    causal_mean: the mean of C(s, l) over l > s [L].
    pairs: the layers that change places, a pair each.
    permutation: P(i, j) = |L' − L| / L, with L' the loss where they do, for each pair.
    skipped: the loss without one layer, above L [L].
    pruned_layers: the layers in the order in which they are removed, those of least `skipped`
      first.
    pruned: the loss without the first n of them, above L, for n = 1, 2, ...
    effective_rank: exp(−Σ p ln p) with p = σ / Σ σ, of the singular values σ of M_l ⋯ M_0, the
      product of the mixing matrices of streams up to layer l: a mean over tokens, from 1 to R [L].
    jacobian: ‖J − I‖_F / √W, where J is the mean over tokens t of ∂(Σ_t' z_{l+1, t'}) / ∂z_{l, t},
      [W, W], and W the width of z; see `probe` for how it is estimated [L].
    not_defined: why a probe that was asked for is missing.
  """

  model: str
  corpus: str
  residual: str
  num_layers: int
  num_tokens: int
  num_rows: int
  loss: float
  angular: Measured | None = None
  causal: Measured | None = None
  causal_mean: Measured | None = None
  pairs: tuple[tuple[int, int], ...] = ()
  permutation: Measured | None = None
  skipped: Measured | None = None
  pruned_layers: tuple[int, ...] = ()
  pruned: Measured | None = None
  effective_rank: Measured | None = None
  jacobian: Measured | None = None
  not_defined: tuple[str, ...] = ()

  @property
  def angle_to_next(self) -> Measured | None:
    """d(l, l + 1) of each layer [L]."""
    if self.angular is None:
      return None
    return Measured(*(np.diagonal(a, 1) for a in (self.angular.mean, self.angular.half)))

  @property
  def swap_with_next(self) -> Measured | None:
    """P(l, l + 1) of each layer [L], NaN for the last one."""
    if self.permutation is None:
      return None
    near = [self.pairs.index((layer, layer + 1)) for layer in range(self.num_layers - 1)]
    values = self.permutation.mean, self.permutation.half
    return Measured(*(np.append(a[near], np.nan) for a in values))


def probe(
  decoder: Decoder,
  text: MeasuredText,
  *,
  model: str,
  probes: Sequence[str] = PROBES,
  pairs: str = "neighbours",
  vectors: int = 16,
  seed: int = 0,
  progress: Progress = lambda done, total: None,
) -> DepthProbes:
  """Returns the depth probes of a decoder on a text.

  The number of a layer is an argument of compiled programs, so that there are few. States at all
  depths of all batches are kept: fewer tokens need less memory.

  Layers that are removed together are chosen on the tokens that then tell the loss, so that the
  least one is a little too low; intervals do not cover the choice.

  ‖J − I‖² is the mean of ‖(J − I)ᵀ v‖² over vectors v of random signs (Hutchinson), of which one
  reverse pass gives those of all layers; the interval covers the choice of vectors, too.

  Args:
    decoder: a decoder of which `depth_paths.check_supported` holds.
    text: the text to measure on.
    model: the name of the decoder, for titles.
    probes: some of `PROBES`.
    pairs: the layers that change places, `neighbours` or `all`.
    vectors: the number of vectors v.
    seed: of the vectors.
    progress: is called after every batch of every pass.

  Raises:
    ValueError: the decoder is not supported, or an option is out of range.
  """
  check(decoder, probes, pairs, vectors)
  depth = decoder.combinator.num_layers
  work = _Work(decoder, text, num_passes(decoder, probes, pairs, vectors), progress)
  found: dict = {"pairs": (), "pruned_layers": ()}
  whole = work.whole()
  missing, skips = [], {"causal", "pruning"} & {*probes}
  if "angular" in probes:
    above = np.triu(np.ones((depth + 1, depth + 1), bool), 1)
    found["angular"] = Measured.of(whole.angles, whole.seen).masked(above)
  if "rank" in probes and whole.mixes is None:
    missing.append(f"no effective rank: {decoder.config.residual.name} has no mixing matrices")
  elif "rank" in probes:
    found["effective_rank"] = Measured.of(_ranks(whole), whole.seen)
  if skips:
    changes, nats = work.without_each()
    later = np.triu(np.ones((depth, depth), bool), 1)
    if "causal" in probes:
      found["causal"] = Measured.of(changes, whole.seen).masked(later)
      number = np.maximum(later.sum(axis=1), 1)[:, None]
      mean = (changes * later[..., None]).sum(axis=1) / number
      found["causal_mean"] = Measured.of(mean, whole.seen).masked(later.any(axis=1))
    if "pruning" in probes:
      skipped = Measured.of(nats - whole.nats, whole.tokens)
      order = np.argsort(skipped.mean, kind="stable")[: _most_pruned(depth)]
      removed = [nats[order[0]], *(work.without(order[:n]) for n in range(2, len(order) + 1))]
      pruned = Measured.of(np.stack(removed) - whole.nats, whole.tokens)
      found |= {"skipped": skipped, "pruned": pruned, "pruned_layers": tuple(map(int, order))}
  if "permutation" in probes:
    chosen = _pairs(depth, pairs)
    swapped = np.array([work.swapped(*pair) for pair in chosen]).reshape(-1, len(whole.nats))
    ratio = Measured.of(swapped, whole.nats)  # L' / L, whose interval takes both as random
    found |= {"pairs": chosen, "permutation": Measured(np.abs(ratio.mean - 1), ratio.half)}
  if "jacobian" in probes and not depth_paths.has_jacobians(decoder.combinator):
    name = decoder.config.residual.name
    missing.append(f"no Jacobians: a layer of {name}, as it is set, reads more than z")
  elif "jacobian" in probes:
    found["jacobian"] = _jacobians(work.products(vectors, seed), whole.seen)
  if len(missing) == len({*probes}):
    raise ValueError(f"probes={','.join(probes)!r} leave nothing: {'; '.join(missing)}")
  return DepthProbes(
    model=model,
    corpus=text.name,
    residual=decoder.config.residual.name,
    num_layers=depth,
    num_tokens=text.num_tokens,
    num_rows=int(np.sum(whole.tokens > 0)),
    loss=float(whole.nats.sum() / whole.tokens.sum()),
    not_defined=tuple(missing),
    **found,
  )


def check(
  decoder: Decoder, probes: Sequence[str] = PROBES, pairs: str = "neighbours", vectors: int = 16
) -> None:
  """Raises a ValueError where `probe` does."""
  depth_paths.check_supported(decoder)
  if not probes or not {*probes} <= {*PROBES}:
    raise ValueError(f"probes={','.join(probes)!r} are not known; give some of {', '.join(PROBES)}")
  if pairs not in PAIRS:
    raise ValueError(f"pairs={pairs!r} is not known; allowed: {', '.join(PAIRS)}")
  if vectors < 2:
    raise ValueError(f"vectors={vectors} gives no interval; give 2 or more")


def num_passes(
  decoder: Decoder, probes: Sequence[str] = PROBES, pairs: str = "neighbours", vectors: int = 16
) -> int:
  """Returns how many forward passes `probe` costs, where a gradient counts as three."""
  depth = decoder.combinator.num_layers
  passes = 1 + depth * bool({"causal", "pruning"} & {*probes})
  passes += (_most_pruned(depth) - 1) * ("pruning" in probes)
  passes += len(_pairs(depth, pairs)) * ("permutation" in probes)
  if "jacobian" in probes and depth_paths.has_jacobians(decoder.combinator):
    passes += _PER_GRADIENT * vectors
  return passes


def flops(
  decoder: Decoder, text: MeasuredText, probes: Sequence[str], pairs: str, vectors: int
) -> float:
  """Returns the FLOPs of the passes of `probe` over all tokens of a text, with padding."""
  passes = num_passes(decoder, probes, pairs, vectors)
  rows, length = text.batches[0]["inputs"].shape
  tokens = rows * length * len(text.batches)
  return passes * tokens * forward_flops_per_token(decoder.config, decoder.combinator, length)


def _most_pruned(depth: int) -> int:
  return max(1, depth // 2)


def _pairs(depth: int, pairs: str) -> tuple[tuple[int, int], ...]:
  """Returns the pairs of layers that change places."""
  most = 1 if pairs == "neighbours" else depth
  return tuple((i, j) for i in range(depth) for j in range(i + 1, min(depth, i + most + 1)))


@dataclasses.dataclass(frozen=True)
class _Whole:
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


class _Work:
  """The compiled passes of one decoder over one text."""

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
    def traced(parameters: PyTree, batch: Mapping[str, Array], *where: Array) -> tuple:
      return _traced(arranged(parameters, *where), batch)

    @small
    def nats(parameters: PyTree, batch: Mapping[str, Array], *where: Array) -> Array:
      model = arranged(parameters, *where)
      hidden = model(batch["inputs"], batch["segment_ids"], batch["positions"])
      return loss_sums(model, hidden, batch, _LOSS_CHUNK, by_row=True).nats

    @small
    def products(parameters: PyTree, batch: Mapping[str, Array], states: Array, v: Array) -> Array:
      return _products(nnx.merge(graphdef, parameters), batch, states, v)

    self._traced, self._nats, self._products = traced, nats, products
    self._angles, self._changes = small(_angles), small(_changes)
    self._everywhere = small(lambda tree: tree)

  def whole(self) -> _Whole:
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
    return _Whole(**joined)  # type: ignore[arg-type]

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
        parts.append(jax.device_get(self._run_passes(run, _PER_GRADIENT)))
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
  """Returns the vectors of `probe`, 1 or -1, float32 [vectors, k, 1, 1, D]."""
  shape = vectors, streams, 1, 1, d_model
  return np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), shape)


def _traced(decoder: Decoder, batch: Mapping[str, Array]) -> tuple:
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


def _ranks(whole: _Whole) -> np.ndarray:
  """Returns the sums of effective ranks over the tokens of each row [L, rows]."""
  assert whole.mixes is not None  # its caller asks
  product, found = None, []
  for mix in np.moveaxis(whole.mixes, (1, 2), (-2, -1)):  # [rows, T, R, R]
    product = mix if product is None else mix @ product
    found.append((effective_rank(product) * whole.here).sum(axis=-1))
  return np.stack(found)


def effective_rank(matrices: np.ndarray) -> np.ndarray:
  """Returns exp(−Σ p ln p) with p = σ / Σ σ of the singular values σ of matrices [..., R, R]."""
  values = np.linalg.svd(matrices, compute_uv=False)
  share = values / values.sum(axis=-1, keepdims=True)
  return np.exp(-np.sum(share * np.log(np.maximum(share, 1e-300)), axis=-1))


def _jacobians(products: np.ndarray, seen: np.ndarray) -> Measured:
  """Returns ‖J − I‖_F / √W [L] of products [vectors, L, rows, k, D] and numbers of tokens [rows].

  With m_v the mean of a product over tokens and f² = mean_v ‖m_v‖² / W, the share of a row in f is
  s = mean_v m_v · (its product) / (W f), up to terms of second order, and Σ s / Σ n is f.
  """
  flat = products.reshape(*products.shape[:3], -1)
  width = flat.shape[-1]
  mean = flat.sum(axis=2) / seen.sum()
  squares = np.sum(mean**2, axis=-1) / width  # [vectors, L]
  norm = np.sqrt(squares.mean(axis=0))
  least = np.maximum(norm, np.finfo(float).tiny)  # of a layer that does nothing
  shares = np.einsum("vlw,vlrw->lr", mean, flat) / (len(flat) * width * least[:, None])
  rows = Measured.of(shares, seen)
  spread = squares.std(axis=0, ddof=1) / np.sqrt(len(flat)) / (2 * least)
  return Measured(norm, np.hypot(rows.half, t_quantile(len(flat) - 1) * spread))
