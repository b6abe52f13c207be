"""How much compute a system saves: its losses against a scaling law of the reference."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, stats

CURRENCIES = ("FLOPs", "tokens")
LEAST_RUNGS = 4
_LEVEL = 0.95
_STARTS = (0.2, 0.6, 0.95)  # of the floor, as shares of the smallest loss
_LEAST_EXPONENT = 1e-3
_EDGE = 1e-6  # relative; a floor so near to the smallest loss leaves nothing to reduce
_ROUNDING = 1e-9  # of log S


@dataclasses.dataclass(frozen=True)
class Ladder:
  """What one system reached on the rungs of a ladder, which grow in size.

  Compute and speed are always taken in one currency, tokens with tokens/s or FLOPs with FLOPs/s;
  mixed, a multiplier would be wrong by the ratio of the FLOPs per token.

  Attributes:
    losses: the loss of each rung in nats per token.
    tokens: how many tokens each rung was trained on.
    flops_per_token: the training FLOPs of each rung for a token; None: not known.
    tokens_per_second: the speed of each rung; None: not measured.

  Raises:
    ValueError: there are fewer than four rungs, or numbers that are not finite and positive.
  """

  losses: Sequence[float]
  tokens: Sequence[float]
  flops_per_token: Sequence[float] | None = None
  tokens_per_second: Sequence[float] | None = None

  def __post_init__(self) -> None:
    count = len(self.losses)
    if count < LEAST_RUNGS:
      raise ValueError(f"{count} rungs are too few for a scaling law; at least {LEAST_RUNGS}")
    for name, values in dataclasses.asdict(self).items():
      if values is None:
        continue
      if len(values) != count:
        raise ValueError(f"{name} has {len(values)} values for {count} rungs")
      if not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError(f"{name}={list(values)} must be finite and above 0")

  def compute(self, currency: str) -> np.ndarray:
    """Returns the compute of each rung.

    Raises:
      ValueError: it is asked for in FLOPs, which are not known.
    """
    return np.asarray(self.tokens, float) * self._price(currency)

  def speed(self, currency: str) -> np.ndarray | None:
    """Returns the compute of each rung per second; None where it was not measured."""
    if self.tokens_per_second is None:
      return None
    return np.asarray(self.tokens_per_second, float) * self._price(currency)

  def _price(self, currency: str) -> np.ndarray:
    """Returns the cost of a token on each rung."""
    if currency not in CURRENCIES:
      raise ValueError(f"currency={currency!r} is not known; allowed: {', '.join(CURRENCIES)}")
    if currency == "tokens":
      return np.ones(len(self.losses))
    if self.flops_per_token is None:
      raise ValueError("the FLOPs per token are not known; take the currency tokens")
    return np.asarray(self.flops_per_token, float)


@dataclasses.dataclass(frozen=True)
class ScalingLaw:
  """L(C) = floor + scale · C^−exponent, fitted to the rungs of a reference.

  Attributes:
    currency: that of C.
    floor: the loss L∞ that no compute reaches.
    scale: the factor A.
    exponent: the exponent α.
    spread: the standard deviation of log L around the law, its lack of fit.
    freedom: the degrees of freedom of that: the rungs without the fitted parameters.
    sensitivity: how floor and exponent answer to the log losses of the rungs [2, n].
  """

  currency: str
  floor: float
  scale: float
  exponent: float
  spread: float
  freedom: int
  sensitivity: np.ndarray

  def loss(self, compute: np.ndarray | float) -> np.ndarray:
    """Returns the loss of the law for this compute."""
    return self.floor + self.scale * np.asarray(compute, float) ** -self.exponent


@dataclasses.dataclass(frozen=True)
class Multiplier:
  """The effective-compute multiplier S on one rung, with its 95 % interval.

  The reference needs S times the time that the arm needs, for the loss of the arm. The value is
  infinite, and the interval unbounded, where the arm's loss is not above the floor of the law.
  """

  value: float
  low: float
  high: float


def fit(reference: Ladder, currency: str, floor: float | None = None) -> ScalingLaw:
  """Fits L(C) = L∞ + A C^−α to a reference by least squares of log L.

  Args:
    reference: its rungs.
    currency: the currency of C.
    floor: L∞, where it is known; default: it is fitted, which costs one degree of freedom.

  Raises:
    ValueError: the losses do not determine such a law.
  """
  compute, y = reference.compute(currency), np.log(np.asarray(reference.losses, float))
  least = math.exp(y.min())
  if floor is not None and not 0 <= floor < least:
    raise ValueError(f"floor={floor:g} must be at least 0 and below the smallest loss, {least:.4g}")
  middle = math.exp(np.log(compute).mean())
  x = np.log(compute / middle)

  starts = [share * least for share in _STARTS] if floor is None else [floor]
  fits = [_minimum(x, y, start, fits_floor=floor is None) for start in starts]
  found = min(fits, key=lambda one: one.cost)
  log_scale, exponent = found.x[:2]
  level = found.x[2] if floor is None else floor
  if exponent < 2 * _LEAST_EXPONENT or least - level < _EDGE * least:
    raise ValueError(
      "the losses of the reference do not fall as a power of compute above a floor; take longer or "
      "larger rungs, or give the floor"
    )
  freedom = len(x) - len(found.x)
  free = [True, True] + [level > _EDGE * least] * (floor is None)  # a floor at 0 answers to nothing
  answers = np.zeros((3, len(x)))
  answers[: len(free)][free] = np.linalg.pinv(found.jac[:, free])
  return ScalingLaw(
    currency=currency,
    floor=float(level),
    scale=float(math.exp(log_scale) * middle**exponent),
    exponent=float(exponent),
    spread=math.sqrt(2 * found.cost / freedom),
    freedom=freedom,
    sensitivity=answers[[2, 1]],
  )


def _minimum(
  x: np.ndarray, y: np.ndarray, floor: float, fits_floor: bool
) -> optimize.OptimizeResult:
  """Returns the least squares of log(L∞ + e^(a − α x)) − y that are found from one floor.

  The parameters are a, α and, where it is fitted, L∞. The search begins with the line through
  log(L − floor).
  """

  def parts(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    above = np.exp(p[0] - p[1] * x)
    return above, (p[2] if fits_floor else floor) + above

  def residuals(p: np.ndarray) -> np.ndarray:
    return np.log(parts(p)[1]) - y

  def jacobian(p: np.ndarray) -> np.ndarray:
    above, total = parts(p)
    return np.stack([above, -x * above, np.ones_like(x)][: len(p)], axis=-1) / total[:, None]

  slope, level = np.polyfit(x, np.log(np.exp(y) - floor), 1)
  start = [level, max(-slope, 2 * _LEAST_EXPONENT), floor]
  low, top = [-np.inf, _LEAST_EXPONENT, 0.0], [np.inf, np.inf, math.exp(y.min())]
  count = 3 if fits_floor else 2
  return optimize.least_squares(
    residuals, start[:count], jacobian, (low[:count], top[:count]), x_scale="jac", max_nfev=1000,
    ftol=1e-14, xtol=1e-14, gtol=1e-14,
  )  # fmt: skip


def multipliers(law: ScalingLaw, reference: Ladder, arm: Ladder) -> list[Multiplier]:
  """Returns the effective-compute multiplier of an arm on each rung.

  S = (C_ref / C_arm) · ((L_ref − L∞) / (L_arm − L∞))^(1/α) · speed_arm / speed_ref

  C and speed are in the law's currency, and the first factor is 1 for equal compute. The last one
  is left out unless both speeds are known. The interval is for log S, by the delta method: errors
  of the reference's losses have the spread of the law, and also move floor and exponent; those of
  the arm's losses have the arm's own spread around a power of compute above the same floor.
  Student's t has the freedom of both by Satterthwaite. Errors of the speeds are left out.

  Args:
    law: what `fit` returned for the reference.
    reference: the rungs of the reference.
    arm: the same rungs of the arm.

  Raises:
    ValueError: the ladders differ in the number of rungs.

  Source:
    Satterthwaite 1946, An approximate distribution of estimates of variance components.
  """
  theirs, own = np.asarray(reference.losses, float), np.asarray(arm.losses, float)
  if len(own) != len(theirs):
    raise ValueError(f"{len(own)} rungs of the arm, {len(theirs)} of the reference")
  factor = reference.compute(law.currency) / arm.compute(law.currency)
  speeds = reference.speed(law.currency), arm.speed(law.currency)
  if speeds[0] is not None and speeds[1] is not None:
    factor = factor * speeds[1] / speeds[0]
  reached = own > law.floor
  above, own_above = theirs - law.floor, np.where(reached, own - law.floor, 1.0)
  ratio = np.log(above / own_above) / law.exponent
  moves = np.stack([1 / own_above - 1 / above, -ratio], axis=-1) @ law.sensitivity
  answers = (moves + np.diag(theirs / above)) / law.exponent
  spread, freedom = _own_spread(arm.compute(law.currency)[reached], own[reached], law.floor)
  variances = np.stack(
    [((law.spread * answers) ** 2).sum(axis=-1), (spread * own / own_above / law.exponent) ** 2]
  )
  total = variances.sum(axis=0)
  with np.errstate(invalid="ignore"):  # 0 / 0 without any spread, and ∞ / ∞
    shared = total**2 / (variances**2 / [[law.freedom], [freedom]]).sum(axis=0)
  t = stats.t.ppf(0.5 + _LEVEL / 2, shared)
  half = np.where(np.isnan(shared), total, t * np.sqrt(total))
  with np.errstate(over="ignore"):
    ends = np.exp(np.log(factor) + ratio + np.stack([np.zeros(len(own)), -half, half])).T.tolist()
  unbounded = Multiplier(math.inf, 0.0, math.inf)
  return [Multiplier(*one) if r else unbounded for one, r in zip(ends, reached, strict=True)]


def _own_spread(compute: np.ndarray, losses: np.ndarray, floor: float) -> tuple[float, int]:
  """Returns the deviation of log L from the line of log(L − L∞) over log C, and its freedom.

  Two rungs lie on any line, and say nothing: their deviation is infinite.
  """
  freedom = len(losses) - 2
  if freedom < 1:
    return math.inf, 1
  above = losses - floor
  weights = above / losses  # an error of log(L − L∞) in one of log L
  design = np.stack([np.ones(len(losses)), np.log(compute)], axis=-1)
  y = weights * np.log(above)
  line = np.linalg.lstsq(design * weights[:, None], y, rcond=None)[0]
  return float(np.linalg.norm(y - design @ line * weights)) / math.sqrt(freedom), freedom


def verdict(found: Sequence[Multiplier], compute: Sequence[float] | np.ndarray) -> tuple[bool, str]:
  """Returns whether an arm may be said to save compute, and the claim or the objection.

  It may if S is above 1 on every rung and does not fall: the slope of log S over log C, with its
  standard error added, is not below 0. What it saves is 1 − 1/S of the largest rung.

  Args:
    found: the multipliers of the rungs.
    compute: the compute of the rungs.
  """
  values = [one.value for one in found]
  worst = min(range(len(values)), key=values.__getitem__)
  if values[worst] <= 1:
    return False, f"S is {values[worst]:.2f} on rung {worst + 1}"
  if not all(map(math.isfinite, values)):
    return False, f"rung {values.index(math.inf) + 1} is not above the floor"
  line = stats.linregress(np.log(np.asarray(compute, float)), np.log(values))
  if line.slope + line.stderr < -_ROUNDING:
    return False, f"S falls, by {1 - 10**line.slope:.1%} for ten times the compute"
  return True, f"saves {1 - 1 / values[-1]:.1%}"
