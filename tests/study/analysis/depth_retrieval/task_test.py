"""Systems and tasks in words, and the ceiling of the plain stream."""

import itertools
from collections import Counter

import numpy as np
import pytest

from resjax import combinators
from resjax.study.analysis.depth_retrieval.task import Setup, System, Task, ceiling, every_system
from resjax.study.analysis.depth_retrieval.training import check


@pytest.mark.slow
def test_ceiling_by_counting_all_cases():
  for symbols, sources in [(1, 3), (2, 1), (2, 5), (3, 4), (5, 3), (3, 7)]:
    cases = list(itertools.product(range(symbols), repeat=sources))
    largest = [max(Counter(case).values()) for case in cases]
    np.testing.assert_allclose(ceiling(symbols, sources), np.mean(largest) / sources, rtol=1e-12)


@pytest.mark.parametrize(("sources", "said"), [(8, 0.208), (16, 0.150)])
@pytest.mark.slow
def test_ceiling_by_drawing(sources, said):
  rng = np.random.default_rng(0)
  symbols = rng.integers(32, size=(200_000, sources))
  counts = np.stack([(symbols == v).sum(1) for v in range(32)], axis=1)
  # The most frequent symbol of the sum, drawn among equals, against the symbol of one source.
  guess = np.argmax(counts + rng.random(counts.shape) / 2, axis=1)
  right = guess == symbols[:, sources // 2]
  error = right.std() / len(right) ** 0.5
  assert abs(right.mean() - ceiling(32, sources)) < 4 * error
  assert abs(ceiling(32, sources) - said) < 5e-4


def test_every_registered_system_is_there_and_spelled_as_it_is_read():
  systems = every_system()
  assert {system.name for system in systems} == set(combinators.names())
  assert len(set(map(str, systems))) == len(systems)
  for system in systems:
    assert System.parse(str(system)) == system
    check(system, 3, [Task(3)], Setup(d_model=8))


def test_spelling():
  system = System.parse("gate:granularity=token:kappa=0.5/read")
  assert system == System("gate", (("granularity", "token"), ("kappa", 0.5)), next_read=True)
  assert Task.parse("fixed:12") == Task(12) and Task.parse("marked") == Task(None)


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("gaet", "'gaet' is not a combinator; did you mean 'gate'?"),
    ("gate:token", "--systems=gate:token: 'token' is no option"),
    ("gate:granularity=x", "--systems=gate:granularity=x with 3 layers: granularity='x' is out of"),
    ("block_attn_res:layers_per_block=4", "with 3 layers: layers_per_block=4 is out of range"),
    ("standard:a=1", "with 3 layers: 'a' is not an option of combinator 'standard'"),
  ],
)
def test_systems_that_are_none(text, words):
  with pytest.raises(ValueError) as error:
    check(System.parse(text), 3, [], Setup())
  assert words in str(error.value)


@pytest.mark.parametrize("text", ["fixed", "fixed:", "fixed:-1", "fixed:x", "any", ""])
def test_tasks_that_are_none(text):
  with pytest.raises(ValueError, match=r"is no task; allowed: marked, and fixed:J"):
    Task.parse(text)


def test_a_source_beyond_the_layers():
  with pytest.raises(ValueError, match=r"--task=fixed:4: with 3 layers there are sources 0\.\.3"):
    check(System("standard"), 3, [Task(4)], Setup())
