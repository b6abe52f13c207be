"""How often what docs/comparisons.md promises of a sweep holds, in sweeps whose truth is known.

  python docs/comparisons/coverage.py

Writes coverage.json beside itself. The library's own rule is measured, and two that it does not
take: `pooled`, one deviation for all contrasts, and `moderated`, which shrinks the deviations of
contrasts towards each other as far as their spread says.
"""

import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import special, stats

from resjax.study.statistics import Student, detectable, holm, student

PATH = pathlib.Path(__file__).with_suffix(".json")
SWEEPS = 10_000
ARMS, SEEDS = (2, 7, 20), (3, 5, 10)
ERROR = 0.05
_MARGIN = 1e4  # so large that the two-sided test of equality errs as often as it may
Noise = Callable[[np.ndarray], np.ndarray]


def _scaled(scales: Callable[[int], np.ndarray]) -> Noise:
  return lambda z: z * scales(z.shape[1])[:, None]


def _first(scale: float) -> Callable[[int], np.ndarray]:
  return lambda arms: np.array([scale] + [1.0] * (arms - 1))


def _last(count: Callable[[int], int]) -> Callable[[int], np.ndarray]:
  return lambda arms: np.where(np.arange(arms) >= arms - count(arms), 4.0, 1.0)


def _copies(z: np.ndarray) -> np.ndarray:
  return np.concatenate([z[:, :1], z[:, 1:2] + 0.05 * z[:, 1:]], axis=1)


def _grown(z: np.ndarray) -> np.ndarray:
  own = z[:, 1:] * np.geomspace(1 / 64, 1, z.shape[1] - 1)[:, None]
  return np.concatenate([z[:, :1], z[:, :1] + own], axis=1)


def _families(z: np.ndarray) -> np.ndarray:
  return np.concatenate([z[:, :1], z[:, 1:] + 2 * np.roll(z, 1, axis=0)[:, 1:2]], axis=1)


# What the noise of arms is, made of [sweeps, arms, seeds] standard normal values. The first arm is
# the reference.
DESIGNS: dict[str, Noise] = {
  "equal noise": _scaled(_first(1)),
  "seeds shift all arms by 100 x the noise": lambda z: z + 100 * np.roll(z, 1, axis=0)[:, :1],
  "one arm with 4 x the noise": _scaled(_last(lambda arms: 1)),
  "half of the arms with 4 x the noise": _scaled(_last(lambda arms: arms // 2)),
  "noise from 1 to 64 x": _scaled(lambda arms: np.geomspace(1, 64, arms)),
  "the reference with 4 x the noise": _scaled(_first(4)),
  "the reference with a quarter of the noise": _scaled(_first(0.25)),
  "arms that are near copies of each other": _copies,
  "arms near the reference, differences from 1 to 64 x": _grown,
  "arms that share most of their noise": _families,
}
# What a t test does not promise: noise that is not normal.
OUTSIDE: dict[str, Noise] = {
  "heavy tails (t with 3 degrees of freedom)": lambda z: stats.t.ppf(special.ndtr(z), 3),
  "skewed (log-normal), one arm with 4 x the noise": lambda z: (
    (np.exp(z) - np.exp(0.5)) * _last(lambda arms: 1)(z.shape[1])[:, None]
  ),
}


def measure(noise: Noise, arms: int, seeds: int, sweeps: int, start: int = 0) -> dict[str, Any]:
  """Returns how often intervals hold the truth, and how often a family of tests errs.

  Args:
    noise: the noise of the design.
    arms: the number of arms, the reference included.
    seeds: the number of seeds.
    sweeps: how many sweeps are simulated.
    start: the seed of the simulation.

  Returns:
    By kind the smallest and the largest share of intervals that hold, over contrasts or arms, and
    the share of sweeps with a false finding: `contrast`, `best_of` (three arms at least),
    `equality` (contrasts as large as the margin that are not called equal), `mean` (of an arm, no
    test), and the contrasts by `pooled` and `moderated`.
  """
  y = noise(np.random.default_rng([start, arms, seeds]).normal(size=(sweeps, arms, seeds)))
  against = student(y[:, 1:] - y[:, :1])
  found = {
    "contrast": shares(against.p()),
    "equality": shares(student(y[:, 1:] - y[:, :1] + _MARGIN).equality_p(_MARGIN)),
    "pooled": shares(_pooled(y, against).p()),
    "moderated": shares(_moderated(y, against).p()),
    "mean": shares(student(y).p())[:2],
  }
  if arms > 2:
    found["best_of"] = shares(student(less_the_best(y)).p())
  return found


def less_the_best(y: np.ndarray) -> np.ndarray:
  """Returns the differences of the second half of arms from the best one of the first half.

  A third of the seeds chooses, and the others compare, as in `against_best`.
  """
  arms, choosing = y.shape[1], y.shape[2] // 3
  best = y[:, : arms // 2, :choosing].mean(axis=-1).argmin(axis=1)
  fresh = y[:, :, choosing:]
  return fresh[:, arms // 2 :] - np.take_along_axis(fresh, best[:, None, None], axis=1)


def shares(p: np.ndarray) -> list[float]:
  """Returns the least and the largest share of contrasts that hold, and that of false families.

  Args:
    p: [sweeps, contrasts] p values of what is true.
  """
  held = (p >= ERROR).mean(axis=0)
  return [float(held.min()), float(held.max()), float((holm(p).min(axis=1) < ERROR).mean())]


def _pooled(y: np.ndarray, own: Student) -> Student:
  """Returns the contrasts with the residual of the two-way layout of arms and seeds."""
  residual = y - y.mean(1, keepdims=True) - y.mean(2, keepdims=True) + y.mean((1, 2), keepdims=True)
  freedom = (y.shape[1] - 1) * (y.shape[2] - 1)
  variance = 2 * (residual**2).sum((1, 2)) / freedom
  return _with(own, np.broadcast_to(variance[:, None], own.mean.shape), freedom)


def _moderated(y: np.ndarray, own: Student) -> Student:
  """Returns the contrasts with deviations that an empirical Bayes prior shrinks.

  Source:
    Smyth 2004, Linear models and empirical Bayes methods, section 6.2.
  """
  if own.mean.shape[1] < 2:
    return own
  d = own.freedom
  # A contrast without any noise would have no logarithm.
  e = np.log(np.maximum(own.deviation**2, 1e-300)) - special.digamma(d / 2) + np.log(d / 2)
  excess = e.var(axis=1, ddof=1) - special.polygamma(1, d / 2)
  prior = 2 * _inverse_trigamma(np.maximum(excess, 1e-6))
  scale = np.exp(e.mean(axis=1) + special.digamma(prior / 2) - np.log(prior / 2))
  prior = np.minimum(prior, (own.mean.shape[1] - 1) * d)[:, None]  # no more than there is to pool
  variance = (prior * scale[:, None] + d * own.deviation**2) / (prior + d)
  return _with(own, variance, prior + d)


def _inverse_trigamma(x: np.ndarray) -> np.ndarray:
  y = 0.5 + 1 / x
  for _ in range(20):  # Newton's method on 1 / trigamma
    trigamma = special.polygamma(1, y)
    y = y + trigamma * (1 - trigamma / x) / special.polygamma(2, y)
  return y


def _with(own: Student, variance: np.ndarray, freedom: Any) -> Student:
  seeds = own.freedom + 1
  return Student(own.mean, variance**0.5, (variance / seeds) ** 0.5, freedom)


def cells(sweeps: int) -> Iterator[dict[str, Any]]:
  """Yields what each design of the grid gives."""
  for design, noise in (DESIGNS | OUTSIDE).items():
    for arms in ARMS:
      for seeds in SEEDS:
        found = measure(noise, arms, seeds, sweeps)
        yield {"design": design, "arms": arms, "seeds": seeds, **found}


def numbers() -> dict[str, str]:
  """Returns the tables of docs/comparisons.md."""
  stored = json.loads(PATH.read_text())
  kinds = ("contrast", "best_of", "equality", "mean", "pooled", "moderated")

  def row(design: str) -> str:
    cells = [cell for cell in stored["cells"] if cell["design"] == design]
    shown = [_range([cell[kind] for cell in cells if kind in cell]) for kind in kinds]
    return f"| {' | '.join((design, *shown))} |"

  def table(designs: Iterable[str]) -> str:
    head = "| noise | difference | less the best | equality | mean of an arm | pooled | moderated |"
    return "\n".join(("", head, "|---" * 7 + "|", *map(row, designs), ""))

  counts = (2, 3, 4, 5, 7, 10)
  power = [
    f"| {n} |" + "".join(f" {detectable(n, contrasts=k):.1f} |" for k in (1, 3, 8)) for n in counts
  ]
  head = "| seeds | one contrast | three, strictest step of Holm | eight, strictest step |"
  return {
    "sweeps": f"{stored['sweeps']:,}",
    "table": table(DESIGNS),
    "outside": table(OUTSIDE),
    "detectable": "\n".join(("", head, "|---" * 4 + "|", *power, "")),
  }


def _range(found: Sequence[Sequence[float]]) -> str:
  low, high = min(one[0] for one in found), max(one[1] for one in found)
  family = [one[2] for one in found if len(one) > 2]
  return f"{100 * low:.1f} to {100 * high:.1f}" + (f"; {100 * max(family):.1f}" if family else "")


def main() -> None:
  """Writes the shares of the whole grid."""
  lines = ",\n".join(json.dumps(cell) for cell in cells(SWEEPS))
  PATH.write_text(f'{{"sweeps": {SWEEPS}, "cells": [\n{lines}\n]}}\n')


if __name__ == "__main__":
  main()
