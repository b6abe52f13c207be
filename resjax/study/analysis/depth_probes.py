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
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from resjax.data import MeasuredText
from resjax.models import Decoder, forward_flops_per_token
from resjax.study.analysis import depth_paths
from resjax.study.analysis.depth_passes import PER_GRADIENT, Passes, Progress, Whole
from resjax.study.analysis.totals import RowSums
from resjax.study.statistics import t_quantile

PROBES = ("angular", "causal", "permutation", "pruning", "rank", "jacobian")
PAIRS = ("neighbours", "all")


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
  passes = Passes(decoder, text, num_passes(decoder, probes, pairs, vectors), progress)
  whole = passes.whole()
  missing = _undefined(decoder, whole, probes)
  if len(missing) == len({*probes}):
    raise ValueError(f"probes={','.join(probes)!r} leave nothing: {'; '.join(missing.values())}")
  asked = {*probes} - {*missing}
  found: dict = {"pairs": (), "pruned_layers": ()}
  if "angular" in asked:
    found["angular"] = Measured.of(whole.angles, whole.seen).masked(_later(len(whole.angles)))
  if "rank" in asked:
    found["effective_rank"] = Measured.of(_ranks(whole), whole.seen)
  if asked & {"causal", "pruning"}:
    found |= _without_layers(passes, whole, asked)
  if "permutation" in asked:
    chosen = _pairs(decoder.combinator.num_layers, pairs)
    swapped = np.array([passes.swapped(*pair) for pair in chosen]).reshape(-1, len(whole.nats))
    ratio = Measured.of(swapped, whole.nats)  # L' / L, whose interval takes both as random
    found |= {"pairs": chosen, "permutation": Measured(np.abs(ratio.mean - 1), ratio.half)}
  if "jacobian" in asked:
    found["jacobian"] = _jacobians(passes.products(vectors, seed), whole.seen)
  return DepthProbes(
    model=model,
    corpus=text.name,
    residual=decoder.config.residual.name,
    num_layers=decoder.combinator.num_layers,
    num_tokens=text.num_tokens,
    num_rows=int(np.sum(whole.tokens > 0)),
    loss=float(whole.nats.sum() / whole.tokens.sum()),
    not_defined=tuple(missing.values()),
    **found,
  )


def _undefined(decoder: Decoder, whole: Whole, probes: Sequence[str]) -> dict[str, str]:
  """Returns why probes that are asked for are not defined, by their names."""
  name, reasons = decoder.config.residual.name, {}
  if whole.mixes is None:
    reasons["rank"] = f"no effective rank: {name} has no mixing matrices"
  if not depth_paths.has_jacobians(decoder.combinator):
    reasons["jacobian"] = f"no Jacobians: a layer of {name}, as it is set, reads more than z"
  return {probe: reason for probe, reason in reasons.items() if probe in probes}


def _later(count: int) -> np.ndarray:
  """Returns where the second of two numbers below `count` is the larger one, bool [n, n]."""
  return np.triu(np.ones((count, count), bool), 1)


def _without_layers(passes: Passes, whole: Whole, asked: set[str]) -> dict:
  """Returns what the causal scores and pruning say, as `DepthProbes` names it."""
  found: dict = {}
  changes, nats = passes.without_each()
  if "causal" in asked:
    later = _later(len(changes))
    found["causal"] = Measured.of(changes, whole.seen).masked(later)
    number = np.maximum(later.sum(axis=1), 1)[:, None]
    mean = (changes * later[..., None]).sum(axis=1) / number
    found["causal_mean"] = Measured.of(mean, whole.seen).masked(later.any(axis=1))
  if "pruning" in asked:
    skipped = Measured.of(nats - whole.nats, whole.tokens)
    order = np.argsort(skipped.mean, kind="stable")[: _most_pruned(len(nats))]
    removed = [nats[order[0]], *(passes.without(order[:n]) for n in range(2, len(order) + 1))]
    pruned = Measured.of(np.stack(removed) - whole.nats, whole.tokens)
    found |= {"skipped": skipped, "pruned": pruned, "pruned_layers": tuple(map(int, order))}
  return found


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
    passes += PER_GRADIENT * vectors
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


def _ranks(whole: Whole) -> np.ndarray:
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
