import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import base
from resjax import experiment, optim

EPS = np.finfo(np.float32).eps


def config(**changes):
  return experiment.to_dataclass(optim.OptimizerConfig, {**base.optim(), **changes}, "config.optim")


def rates(steps, **changes):
  f = optim.schedule(config(**changes), steps)
  return np.array([f(step) for step in range(steps)], np.float64)


def test_fields_are_those_of_the_base_config():
  assert [f.name for f in dataclasses.fields(optim.OptimizerConfig)] == list(base.optim())


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("learning_rate", 0.0),
    ("learning_rate", math.inf),
    ("schedule", "cosin"),
    ("warmup_steps", -1),
    ("decay_fraction", 0.0),
    ("decay_fraction", 1.1),
    ("final_fraction", -0.1),
    ("b1", 1.0),
    ("b2", math.nan),
    ("eps", 0.0),
    ("weight_decay", -0.1),
    ("clip_norm", -1.0),
  ],
)
def test_settings_out_of_range(name, value):
  with pytest.raises(ValueError, match=rf"config\.optim\.{name} is"):
    config(**{name: value})


def test_cosine():
  got = rates(50, warmup_steps=10, learning_rate=2.0, final_fraction=0.1)
  step = np.arange(50)
  share = (step - 9) / 40
  want = np.where(step < 10, (step + 1) / 10, 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * share)))
  # The cosine of fp32 near π is off by about π · eps, at values of 2.
  np.testing.assert_allclose(got, 2 * want, atol=8 * EPS)


def test_wsd():
  got = rates(
    50, schedule="wsd", warmup_steps=10, learning_rate=2.0, final_fraction=0.1, decay_fraction=0.2
  )
  step = np.arange(50)
  want = np.minimum((step + 1) / 10, np.minimum(1, 1 - 0.9 * (step - 39) / 10))
  np.testing.assert_allclose(got, 2 * want, atol=8 * EPS)


def test_constant():
  got = rates(30, schedule="constant", warmup_steps=4, learning_rate=0.5)
  np.testing.assert_allclose(got, 0.5 * np.minimum(1, np.arange(1, 31) / 4), rtol=2 * EPS)


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 2, 7])
def test_first_peak_and_last_step(schedule, warmup):
  got = rates(20, schedule=schedule, warmup_steps=warmup, learning_rate=1.0, final_fraction=0.25)
  np.testing.assert_allclose(got[0], 1 / max(warmup, 1), rtol=2 * EPS)
  np.testing.assert_allclose(got[max(warmup - 1, 0)], 1.0, rtol=2 * EPS)
  np.testing.assert_allclose(got[-1], 1.0 if schedule == "constant" else 0.25, rtol=8 * EPS)
  assert got.max() <= 1.0 + 2 * EPS


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_one_step(schedule):
  assert rates(1, schedule=schedule, warmup_steps=0, learning_rate=1.0) == [1.0]


def test_warmup_as_long_as_the_run_ends_at_the_peak():
  np.testing.assert_allclose(rates(4, warmup_steps=4, learning_rate=1.0), [0.25, 0.5, 0.75, 1.0])


def test_schedules_that_do_not_fit():
  with pytest.raises(ValueError, match=r"config\.optim\.warmup_steps is 100, more than the 50"):
    optim.schedule(config(warmup_steps=100), 50)
  with pytest.raises(ValueError, match=r"config\.optim\.warmup_steps \(6\).*overlap in 10 steps"):
    optim.schedule(config(schedule="wsd", warmup_steps=6, decay_fraction=0.5), 10)
  with pytest.raises(ValueError, match=r"config\.train\.steps is 0"):
    optim.schedule(config(), 0)


def parameters(seed=0):
  rng = np.random.default_rng(seed)
  shapes = {
    "embed": {"embedding": (11, 4)},
    "layers": {
      # Stacked over three layers: scales and biases have two axes.
      "attention": {"q_proj": {"kernel": (3, 4, 8), "bias": (3, 8)}},
      "norm": {"scale": (3, 4)},
    },
    "combinator": {"query": (3, 4), "mix": {"kernel": (4, 2)}, "mixer": {"kernel": (4, 2)}},
  }
  return jax.tree.map(
    lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32),
    shapes,
    is_leaf=lambda node: isinstance(node, tuple),
  )


def test_parameter_rows():
  assert optim.parameter_rows(parameters(), ["combinator/mix"]) == [
    ("combinator/mix/kernel", (4, 2), True),
    ("combinator/mixer/kernel", (4, 2), False),
    ("combinator/query", (3, 4), False),
    ("embed/embedding", (11, 4), True),
    ("layers/attention/q_proj/bias", (3, 8), False),
    ("layers/attention/q_proj/kernel", (3, 4, 8), True),
    ("layers/norm/scale", (3, 4), False),
  ]
  assert not any(r.decayed for r in optim.parameter_rows(parameters()) if "combinator" in r.path)


def test_decay_mask_has_the_structure_of_the_parameters():
  mask = optim.decay_mask(parameters(), ["combinator/query"])
  assert mask == {
    "embed": {"embedding": True},
    "layers": {"attention": {"q_proj": {"kernel": True, "bias": False}}, "norm": {"scale": False}},
    "combinator": {"query": True, "mix": {"kernel": False}, "mixer": {"kernel": False}},
  }


def test_unknown_combinator_path():
  optimizer = optim.make_optimizer(config(), 1000, ["combinator/quer"])
  with pytest.raises(ValueError, match="'combinator/quer' names none of"):
    optimizer.init(parameters())


def adamw_float64(params, grads, c, decayed):
  """AdamW as in the paper, the schedule's η·α being the learning rate; float64."""
  theta = [np.asarray(p, np.float64) for p in params]
  m, v = [0 * p for p in theta], [0 * p for p in theta]
  for t, step_grads in enumerate(grads, 1):
    lr = c.learning_rate * min(1.0, t / c.warmup_steps)
    g = [np.asarray(x, np.float64) for x in step_grads]
    norm = np.sqrt(sum((x**2).sum() for x in g))
    if c.clip_norm:
      g = [x * min(1.0, c.clip_norm / norm) for x in g]
    for i, x in enumerate(g):
      m[i] = c.b1 * m[i] + (1 - c.b1) * x
      v[i] = c.b2 * v[i] + (1 - c.b2) * x**2
      update = (m[i] / (1 - c.b1**t)) / (np.sqrt(v[i] / (1 - c.b2**t)) + c.eps)
      theta[i] = theta[i] - lr * (update + c.weight_decay * decayed[i] * theta[i])
  return theta


@pytest.mark.parametrize("clip_norm", [0.0, 1.0, 1e3])
def test_steps_are_those_of_adamw(clip_norm):
  c = config(
    schedule="constant", warmup_steps=3, learning_rate=0.05, weight_decay=0.5, clip_norm=clip_norm
  )
  params = parameters()
  optimizer = optim.make_optimizer(c, 100, ["combinator/mix"])
  state, grads = optimizer.init(params), [parameters(seed) for seed in range(1, 7)]
  decayed = [row.decayed for row in optim.parameter_rows(params, ["combinator/mix"])]
  want = adamw_float64(jax.tree.leaves(params), [jax.tree.leaves(g) for g in grads], c, decayed)
  for grad in grads:
    updates, state = jax.jit(optimizer.update)(grad, state, params)
    params = optax.apply_updates(params, updates)
  for got, expected in zip(jax.tree.leaves(params), want, strict=True):
    # A few roundings of numbers of size 1..4 in each of 6 steps.
    np.testing.assert_allclose(got, expected, rtol=0, atol=6 * 4 * EPS)


def test_without_gradient_only_decayed_parameters_move():
  c = config(schedule="constant", warmup_steps=0, learning_rate=0.1, weight_decay=0.5)
  params = parameters()
  optimizer = optim.make_optimizer(c, 10)
  updates, _ = optimizer.update(
    jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params
  )
  for row, update, param in zip(
    optim.parameter_rows(params), jax.tree.leaves(updates), jax.tree.leaves(params), strict=True
  ):
    np.testing.assert_allclose(update, -0.05 * param if row.decayed else 0 * param, rtol=4 * EPS)


def test_clipping_bounds_the_first_moment():
  # After one step from zero moments the mean of gradients is (1 - b1) times the clipped gradient.
  params, grad = parameters(), parameters(1)
  for clip_norm, want in ((0.5, 0.5), (1e3, float(optax.tree.norm(grad)))):
    optimizer = optim.make_optimizer(config(clip_norm=clip_norm, b1=0.5), 1000)
    _, state = optimizer.update(grad, optimizer.init(params), params)
    mean = optax.tree_utils.tree_get(state, "mu")
    np.testing.assert_allclose(2 * optax.tree.norm(mean), want, rtol=8 * EPS)
