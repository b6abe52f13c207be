"""Rotations that differ from layer to layer: bases, scalings, none."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import base
from resjax.models.config import LayerRope, ShortSWAConfig
from resjax.models.sampling import generate
from resjax.nn.rope import Rope, Rotation, rope
from resjax.nn.rope_scaling import RopeScaling
from resjax.testing.compare import assert_close
from resjax.train import experiment
from resjax.train.runs import workdir
from tests.helpers import decoders

YARN = RopeScaling("yarn", 4.0, original_max_positions=64)
LONG = RopeScaling(
  "longrope", 4.0, original_max_positions=8, short_factors=(1.0, 1.2), long_factors=(2.0, 9.0)
)
ROPES = (LayerRope(100.0), LayerRope(0.0), LayerRope(1e4, YARN))


def run(config, tokens):
  graphdef, state = nnx.split(decoders.drawn(config))
  return jax.jit(lambda state: nnx.merge(graphdef, state)(tokens))(state)


@pytest.mark.parametrize("changes", [{}, {"short_swa": ShortSWAConfig(3, 2, zero_init=False)}])
def test_each_layer_has_its_own(changes):
  """By a plain loop over layers, each as the only layer of a decoder."""
  config = decoders.config(ropes=ROPES, **changes)
  tokens = decoders.tokens(config)
  model = decoders.drawn(config)
  graphdef, layers = nnx.split(model.layers)
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  place = {"segment_ids": jnp.ones_like(tokens), "positions": positions}

  @jax.jit
  def by_hand():
    x = model.embed(tokens, positions)
    for index, rotation in enumerate(config.layer_ropes):
      layer = nnx.merge(graphdef, jax.tree.map(lambda leaf, i=index: leaf[i], layers))
      turned = {"rotation": Rotation((rotation,))}
      if "short_swa" in config.sites:
        n = layer.norms["short_swa"]["x"](x)
        x = x + layer.short_swa(n, n, n, window=layer.short_window, **place, **turned)[0]
      n = layer.norms["attention"]["x"](x)
      x = x + layer.attention(n, n, n, **place, **turned)[0]
      x = x + layer.mlp(layer.norms["mlp"]["x"](x))
    return model.final_norm(x)

  assert_close(run(config, tokens), by_hand(), 1e-5)
  turned = dataclasses.replace(config, ropes=ROPES[1:] + ROPES[:1])
  assert np.abs(run(turned, tokens) - run(config, tokens)).max() > 1e-2


def test_a_pattern_of_one_is_what_the_two_settings_are():
  config = decoders.config(rope_theta=100.0, rope_scaling=YARN)
  same = decoders.config(ropes=(LayerRope(100.0, YARN),))
  np.testing.assert_array_equal(*(run(c, decoders.tokens(c)) for c in (config, same)))


def test_no_rotation_is_exact():
  x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, 2, 4)), jnp.float32)
  both = Rotation((Rope(1e4, scaling=YARN), None), jnp.asarray(1))
  np.testing.assert_array_equal(rope(x, jnp.arange(5)[None], both, "cpu"), x)


@pytest.mark.parametrize("index", [None, 1])
def test_what_is_not_rotated_is_not_multiplied(index):
  x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, 2, 8)), jnp.float32)
  yarn = Rope(100.0, 0.5, YARN)
  rotation = Rotation((yarn,)) if index is None else Rotation((None, yarn), jnp.asarray(index))
  got = rope(x, jnp.arange(5)[None], rotation, "cpu")
  gain = 1 + 0.1 * np.log(4)
  plain = rope(x, jnp.arange(5)[None], Rotation((Rope(100.0, 0.5, YARN_WITHOUT_GAIN),)), "cpu")
  assert_close(got[..., :4], gain * plain[..., :4], 1e-6)
  np.testing.assert_array_equal(got[..., 4:], x[..., 4:])


YARN_WITHOUT_GAIN = dataclasses.replace(YARN, attention_factor=1.0)


def greedy(config, prompt, count):
  graphdef, state = nnx.split(decoders.drawn(config))

  @jax.jit
  def tokens(state):
    model = nnx.merge(graphdef, state)
    return generate(model, prompt, count, temperature=0, key=jax.random.key(0))

  return np.asarray(tokens(state))


def recomputed(config, prompt, count):
  """Greedy tokens from whole rows, whose last tokens are padding."""
  rows = np.pad(np.asarray(prompt), ((0, 0), (0, count)))
  graphdef, state = nnx.split(decoders.drawn(config))

  @jax.jit
  def best(state, rows, ids):
    model = nnx.merge(graphdef, state)
    return jnp.argmax(model.logits(model(rows, jnp.asarray(ids))), -1)

  for at in range(prompt.shape[1], rows.shape[1]):
    ids = np.broadcast_to(np.arange(rows.shape[1]) < at, rows.shape).astype(np.int32)
    rows[:, at] = np.asarray(best(state, jnp.asarray(rows), ids))[:, at - 1]
  return rows


@pytest.mark.parametrize(
  ("ropes", "length"), [(ROPES, 4), ((LayerRope(100.0, LONG), LayerRope(0.0)), 6)]
)
def test_the_cache_gives_what_whole_rows_give(ropes, length):
  """With longrope, also where a row gets long by a token of its continuation."""
  config = decoders.config(ropes=ropes)
  prompt = decoders.tokens(config, length=length)
  np.testing.assert_array_equal(greedy(config, prompt, 12), recomputed(config, prompt, 12))


def test_frequencies_of_longrope():
  short, long = (Rope(1e4, 1.0, LONG).frequencies(4, is_long) for is_long in (False, True))
  np.testing.assert_allclose(short * [1.0, 1.2], [1.0, 1e-2], rtol=1e-6)
  np.testing.assert_allclose(long * [2.0, 9.0], [1.0, 1e-2], rtol=1e-6)


LONG_CONFIG = decoders.config(
  ropes=(LayerRope(1e4, LONG), LayerRope(100.0)), windows=(0, 6), num_layers=2
)


@pytest.fixture(scope="module")
def alone():
  """What rows of 7 to 12 tokens are by themselves, without padding."""
  tokens = decoders.tokens(LONG_CONFIG, batch=1, length=12)
  return tokens, {n: np.asarray(run(LONG_CONFIG, tokens[:, :n]))[0] for n in (7, 8, 9, 12)}


def test_the_length_of_a_document_decides_longrope(alone):
  tokens, want = alone
  assert np.abs(want[9][:8] - want[8]).max() > 1e-2
  # Two documents on both sides of the border in one row, and padding of a segment of its own.
  row = jnp.concatenate([tokens[:, :8], tokens[:, :9], tokens[:, :3]], axis=1)
  ids = jnp.repeat(jnp.array([[1, 2, 0]]), np.array([8, 9, 3]), axis=1)
  positions = jnp.concatenate([jnp.arange(8), jnp.arange(9), jnp.arange(3)])[None]
  got = np.asarray(decoders.drawn(LONG_CONFIG)(row, ids, positions))[0]
  assert_close((got[:8], got[8:17]), (want[8], want[9]), 1e-5)


def test_rows_get_long_one_by_one_in_a_cache(alone):
  """Each by a token of its own: what a call returns is that of the row as long as it is then."""
  tokens, want = alone
  model = decoders.drawn(LONG_CONFIG)
  cache = model.empty_cache(2, 24)
  calls = [(7, 5), (1, 2), (1, 0), (3, 5)]  # tokens of both rows: 7, 8, 9, 12 and 5, 7, 7, 12
  done = np.zeros(2, int)
  for counts in calls:
    width = max(counts)
    rows, ids = np.zeros((2, 2, width), np.int32)
    for row, count in enumerate(counts):
      rows[row, :count] = tokens[0, done[row] : done[row] + count]
      ids[row, :count] = 1
    hidden, cache = model.decode(jnp.asarray(rows), cache, jnp.asarray(ids))
    done += counts
    for row, count in enumerate(counts):
      if count and done[row] in want:
        assert_close(hidden[row, :count], want[done[row]][-count:], 1e-5)
  np.testing.assert_array_equal(done, 12)


def sections(*ropes):
  c = base.get_config()
  c.data.tokenizer.name = "byte"
  c.model.ropes = ropes
  return c


def test_sections_of_a_config_and_of_a_record(tmp_path):
  given = ({"theta": 5.0}, {"theta": 0.0, "scaling": {"kind": "linear", "factor": 2.0}})
  run = experiment.build(sections(*given))
  want = (LayerRope(5.0), LayerRope(0.0, RopeScaling("linear", 2.0)))
  assert run.decoder.ropes == want
  assert run.decoder.layer_ropes[:3] == (Rope(5.0), None, Rope(5.0))
  named = workdir.model_identity(run.decoder)["config.model.ropes"]
  assert [rope["theta"] for rope in named] == [5.0, 0.0]
  # Runs of before have neither.
  plain = workdir.model_identity(experiment.build(sections()).decoder)
  assert "config.model.ropes" not in plain
  assert list(plain["config.model.rope_scaling"]) == [
    "kind", "factor", "low_freq_factor", "high_freq_factor", "original_max_positions"
  ]  # fmt: skip


@pytest.mark.parametrize(
  ("ropes", "message"),
  [
    (({"theta": -1.0},), r"config.model.ropes\[0\].theta=-1.0 must be positive, or 0"),
    (({"base": 1.0},), r"config.model.ropes\[0\].base is not a setting"),
    (({"scaling": {"kind": "ntk"}},), r"ropes\[0\].scaling.kind='ntk' must be one of none, linear"),
    ((3.0,), r"config.model.ropes=\(3.0,\) must be a tuple of"),
    (({},) * 13, "config.model.ropes=.* must be a tuple of at most num_layers=12 sections"),
    (
      ({"scaling": {"kind": "longrope", "original_max_positions": 9}},),
      r"short_factors=\(\) must be 32 positive numbers with 'longrope'",
    ),
    (
      ({"scaling": {"kind": "yarn", "original_max_positions": 9, "beta_slow": 33.0}},),
      "beta_slow=33.0 must be between 0 and beta_fast=32.0",
    ),
    (({"scaling": {"kind": "yarn"}},), "original_max_positions=0 must be positive with"),
  ],
)
def test_refusals(ropes, message):
  with pytest.raises(ValueError, match=message) as caught:
    experiment.build(sections(*ropes))
  assert "\n" not in str(caught.value)
