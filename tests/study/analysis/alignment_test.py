"""An alignment that is written and read again stays the same."""

import dataclasses
import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from resjax import combinators
from resjax.combinators import OUTPUT
from resjax.study.analysis.alignment import (
  METRICS,
  READINGS,
  Alignment,
  DepthPosition,
  DepthWeights,
  Estimate,
  Group,
  Shift,
)
from tests.helpers.alignments import alignment

SHIFT = ("shifts", "probability")


def block_weights(sharpness, **options):
  """Depth weights of every read of 5 layers in blocks of 2; queries point at the embedding."""
  x = jnp.ones((2, 8))
  made = combinators.BlockAttnRes(num_layers=5, d_model=8, layers_per_block=2, **options)
  made.query[...] = jnp.full(made.query.shape, sharpness / 8)
  state, readers, rows = made.init(x), [], []
  for layer, site in itertools.product(range(5), made.sites):
    readers.append(DepthPosition(layer, site))
    rows.append(np.mean(made.depth_weights(state, layer, site), axis=1))
    _, tape = made.read(state, layer, site)
    state = made.write(state, layer, site, -x, tape=tape)
  readers.append(DepthPosition(5, OUTPUT))
  rows.append(np.mean(made.depth_weights(state, 5, OUTPUT), axis=1))
  return DepthWeights(tuple(readers), made.source_names(), np.stack(rows))


@pytest.mark.parametrize(
  ("sharpness", "options", "share"),
  [
    (0.0, {}, 0.5),
    (1.0, {}, 1 / (1 + np.exp(2))),  # x and the sum point in opposite directions
    (8.0, {}, 0.0),  # a dead segment
    (8.0, {"first_block": "uniform"}, 0.5),
  ],
)
def test_the_running_sum_of_the_first_block(sharpness, options, share):
  found = block_weights(sharpness, **options).running_sum()
  assert found.shape == (3,)  # of four reads the first one finds no sum
  np.testing.assert_allclose(found, share, atol=1e-5)


def test_sources_that_are_no_blocks_have_no_running_sum():
  weights = alignment(depth_weights=True).depth_weights
  assert len(weights.running_sum()) == 0


def example(depth_weights=None):
  rng = np.random.default_rng(0)
  metrics = {name: rng.normal(size=3) for name in METRICS}
  metrics["branch_norm"][0] = np.nan
  one = Estimate(2, 1, None, 0.96)
  groups = {
    "all": Group(90, 30, metrics, {"probability": Shift(*[one] * 7, 0.95, 200)}),
    "decile_3": Group(0, 0, {name: np.full(3, np.nan) for name in METRICS}, {}),
  }
  places = (DepthPosition(-1, "embedding"), DepthPosition(0, "mlp"), DepthPosition(1, "mlp"))
  return Alignment("a", "b", 10, places, dict.fromkeys(READINGS, groups), depth_weights)


@pytest.mark.parametrize("with_weights", [False, True])
def test_json_and_back_is_the_same(with_weights):
  weights = DepthWeights((DepthPosition(0, "mlp"),), ("embedding", "x"), np.array([[0.25, 0.75]]))
  given = example(weights if with_weights else None)
  back = Alignment.from_json(given.to_json())
  assert list(back.readings) == list(READINGS)
  np.testing.assert_equal(dataclasses.asdict(back), dataclasses.asdict(given))


def test_json_has_finite_numbers_only():
  given = example()
  given.readings["closed"]["all"].metrics["hidden_norm"][1] = np.inf  # A cut may overflow.
  text = given.to_json()
  assert "NaN" not in text and "Infinity" not in text
  metrics = json.loads(text)["readings"]["closed"]["all"]["metrics"]
  assert metrics["branch_norm"][0] is None and metrics["hidden_norm"][1] is None


@pytest.mark.parametrize(
  ("path", "value", "words"),
  [
    (("positions", 1, "layer"), 10**9, "positions must be the embedding"),
    (("positions", 0, "layer"), -2, "positions[0].layer is -2: expected int >= -1"),
    (("positions",), [], "positions must be the embedding"),
    (("readings",), {}, "readings must not be empty"),
    (("readings", "closed"), {}, "readings.closed has no group 'all'"),
    (("readings", "closed", "all", "num_tokens"), "9", "closed.all.num_tokens is '9'"),
    (("readings", "closed", "all", "metrics", "entropy"), [1.0], "entropy has 1 values for 3"),
    (("readings", "closed", "all", *SHIFT, "unread", "upper"), 3, "beyond the 3 positions"),
    (("readings", "closed", "all", *SHIFT, "level"), 2, "level is 2: expected float <= 1"),
    (("readings", "closed", "all", "shifts"), None, "all.shifts is None: expected object"),
    (("depth_weights", "weights"), [[1, 2], [3]], "weights must have 1 rows of 2 numbers"),
  ],
)
def test_other_json_is_named_in_one_line(path, value, words):
  weights = DepthWeights((DepthPosition(0, "mlp"),), ("embedding", "x"), np.array([[0.25, 0.75]]))
  values = json.loads(example(weights).to_json())
  entry = values
  for step in path[:-1]:
    entry = entry[step]
  entry[path[-1]] = value
  with pytest.raises(ValueError) as caught:
    Alignment.from_json(json.dumps(values), "a.json")
  message = str(caught.value)
  assert message.startswith("a.json") and words in message and "\n" not in message
