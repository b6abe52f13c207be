"""What the page on comparisons promises: a small part of its grid, by the rule of the library."""

import json

import numpy as np
import pytest

from docs.comparisons import coverage
from resjax.study.statistics import Contrast, against_best, compare


@pytest.mark.parametrize("design", coverage.DESIGNS)
def test_intervals_and_families_hold_in_every_design(design):
  found = coverage.measure(coverage.DESIGNS[design], arms=7, seeds=3, sweeps=2000, start=1)
  for kind in ("contrast", "best_of", "equality", "mean"):
    low, high, *family = found[kind]
    assert 0.93 <= low <= high <= 0.97, kind
    assert all(error <= 0.06 for error in family), kind


def test_the_stored_grid_is_whole_and_holds():
  stored = json.loads((coverage.PATH).read_text())
  assert stored["sweeps"] >= 2000
  designs = [*coverage.DESIGNS, *coverage.OUTSIDE]
  assert [(c["design"], c["arms"], c["seeds"]) for c in stored["cells"]] == [
    (design, arms, seeds)
    for design in designs
    for arms in coverage.ARMS
    for seeds in coverage.SEEDS
  ]
  for cell in stored["cells"]:
    for kind in ("contrast", "best_of", "equality", "mean"):
      if kind in cell and cell["design"] in coverage.DESIGNS:
        low, high, *family = cell[kind]
        assert 0.93 <= low <= high <= 0.97 and all(error <= 0.06 for error in family)


def test_the_simulation_is_what_the_library_says_of_a_sweep():
  noise = coverage.DESIGNS["one arm with 4 x the noise"]
  y = noise(np.random.default_rng([0, 7, 5]).normal(size=(20, 7, 5)))
  best, names = coverage.less_the_best(y), "abcdefg"
  for sweep, rest in zip(y, best, strict=True):
    values = {a: dict(enumerate(v)) for a, v in zip(names, sweep, strict=True)}
    found = against_best(values, names[3:], names[:3], (0,))
    assert [d.paired for d in found] == [tuple(d) for d in rest]
  found = compare(values, [Contrast(name, "a") for name in names[1:]])
  wanted = coverage.shares(coverage.student(y[-1:, 1:] - y[-1:, :1]).p())
  assert wanted[2] == (min(d.holm for d in found) < 0.05)
  assert wanted[0] == min(d.interval[0] <= 0 <= d.interval[1] for d in found)
