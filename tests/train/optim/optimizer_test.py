import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from resjax.train import optim
from tests.helpers import layouts
from tests.helpers.optimizers import config, parameters

EPS = np.finfo(np.float32).eps
SAME = optim.Scaling()


def make_step(optimizer):
  """A compiled step: (gradient, state, parameters) to new parameters and state."""

  @jax.jit
  def step(grad, state, params):
    updates, state = optimizer.update(grad, state, params)
    return optax.apply_updates(params, updates), state

  return step


def first_step(optimizer, grad, params):
  """The updates and the state after the first step."""
  step = jax.jit(lambda grad, params: optimizer.update(grad, optimizer.init(params), params))
  return step(grad, params)


def test_unknown_combinator_path():
  optimizer = optim.make_optimizer(config(), 1000, ["combinator/quer"])
  with pytest.raises(ValueError, match="'combinator/quer' names none of"):
    optimizer.init(parameters())


def adamw_float64(params, grads, c, rows, scaling=SAME):
  """AdamW as in the paper, the schedule's η·α being the learning rate; float64.

  In a model that is m times wider and ℓ times deeper, matrices of layers have 1/m of the rate and m
  times the decay (muP), and all parameters of layers 1/(m ℓ) of the eps (CompleteP).
  """
  theta = [np.asarray(p, np.float64) for p in params]
  m, v = [0 * p for p in theta], [0 * p for p in theta]
  for t, step_grads in enumerate(grads, 1):
    lr = c.learning_rate * min(1.0, t / c.warmup_steps)
    g = [np.asarray(x, np.float64) for x in step_grads]
    norm = np.sqrt(sum((x**2).sum() for x in g))
    if c.clip_norm:
      g = [x * min(1.0, c.clip_norm / norm) for x in g]
    for i, (x, row) in enumerate(zip(g, rows, strict=True)):
      m[i] = c.b1 * m[i] + (1 - c.b1) * x
      v[i] = c.b2 * v[i] + (1 - c.b2) * x**2
      rate, decay, eps = lr * row.lr_multiplier, c.weight_decay * row.decayed, c.eps
      if row.path.startswith("layers/"):
        eps /= scaling.width * scaling.depth
        if row.path.endswith("kernel"):
          rate, decay = rate / scaling.width, decay * scaling.width
      update = (m[i] / (1 - c.b1**t)) / (np.sqrt(v[i] / (1 - c.b2**t)) + eps)
      theta[i] = theta[i] - rate * (update + decay * theta[i])
  return theta


STEADY = {"schedule": "constant", "warmup_steps": 3, "learning_rate": 0.05, "weight_decay": 0.5}


@pytest.mark.parametrize("multiplier", [1.0, 0.25])
@pytest.mark.parametrize("clip_norm", [0.0, 1.0, 1e3])
def test_steps_are_those_of_adamw(clip_norm, multiplier):
  c = config(**STEADY, clip_norm=clip_norm, combinator_lr_multiplier=multiplier)
  params = parameters()
  optimizer = optim.make_optimizer(c, 100, ["combinator/mix"])
  state, grads = optimizer.init(params), [parameters(seed) for seed in range(1, 7)]
  rows = optim.parameter_rows(params, c, ["combinator/mix"])
  want = adamw_float64(jax.tree.leaves(params), [jax.tree.leaves(g) for g in grads], c, rows)
  step = make_step(optimizer)
  for grad in grads:
    params, state = step(grad, state, params)
  for got, expected in zip(jax.tree.leaves(params), want, strict=True):
    # A few roundings of numbers of size 1..4 in each of 6 steps.
    np.testing.assert_allclose(got, expected, rtol=0, atol=6 * 4 * EPS)


@pytest.mark.parametrize("scaling", [optim.Scaling(4.0), optim.Scaling(3.0, 2.5)])
def test_larger_models_follow_mup_and_completep(scaling):
  # An eps as large as the gradients, so that its scaling decides too.
  c = config(**STEADY, eps=1.0, clip_norm=0.0)
  params = parameters()
  optimizer = optim.make_optimizer(c, 100, ["combinator/mix"], scaling)
  state, grads = optimizer.init(params), [parameters(seed) for seed in range(1, 7)]
  rows = optim.parameter_rows(params, c, ["combinator/mix"])
  leaves = jax.tree.leaves(params), [jax.tree.leaves(g) for g in grads]
  want, plain = (adamw_float64(*leaves, c, rows, given) for given in (scaling, SAME))
  step = make_step(optimizer)
  for grad in grads:
    params, state = step(grad, state, params)
  for row, got, expected, other in zip(rows, jax.tree.leaves(params), want, plain, strict=True):
    np.testing.assert_allclose(got, expected, rtol=0, atol=6 * 4 * EPS)
    assert row.path.startswith("layers/") == (np.abs(expected - other).max() > 1e-3), row.path


def test_a_model_of_the_same_size_has_the_same_optimizer():
  # Checkpoints of the moments depend on it.
  params = parameters()
  plain, given = (optim.make_optimizer(config(), 100, (), *more) for more in ((), (SAME,)))
  states = [optimizer.init(params) for optimizer in (plain, given)]
  assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
  assert set(states[0][1].inner_states) == {"adam"}


def test_without_gradient_only_decayed_parameters_move():
  c = config(schedule="constant", warmup_steps=0, learning_rate=0.1, weight_decay=0.5)
  params = jax.tree.map(np.asarray, parameters())
  updates, _ = first_step(optim.make_optimizer(c, 10), jax.tree.map(np.zeros_like, params), params)
  for row, update, param in zip(
    optim.parameter_rows(params, c), jax.tree.leaves(updates), jax.tree.leaves(params), strict=True
  ):
    np.testing.assert_allclose(update, -0.05 * param if row.decayed else 0 * param, rtol=4 * EPS)


def test_clipping_bounds_the_first_moment():
  # After one step from zero moments the mean of gradients is (1 - b1) times the clipped gradient.
  params, grad = parameters(), parameters(1)
  norm = jax.jit(optax.tree.norm)
  for clip_norm, want in ((0.5, 0.5), (1e3, float(norm(grad)))):
    optimizer = optim.make_optimizer(config(clip_norm=clip_norm, b1=0.5), 1000)
    _, state = first_step(optimizer, grad, params)
    mean = optax.tree_utils.tree_get(state, "mu")
    np.testing.assert_allclose(2 * float(norm(mean)), want, rtol=8 * EPS)


def test_a_combinator_without_learning_rate_stays():
  params = parameters()
  optimizer = optim.make_optimizer(config(combinator_lr_multiplier=0.0), 1000, ["combinator"])
  updates, _ = first_step(optimizer, parameters(1), params)
  for row, update in zip(
    optim.parameter_rows(params, config()), jax.tree.leaves(updates), strict=True
  ):
    assert np.asarray(update).any() != row.path.startswith("combinator/"), row.path


# More layers than a row has numbers, too; and experts.
@pytest.mark.parametrize("shape", [(9, 4, 8), (2, 8, 4), (2, 3, 8, 4)])
@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_muon_is_that_of_optax_on_each_layer_alone(shape, clip_norm):
  c = config(name="muon", **STEADY, clip_norm=clip_norm, muon_momentum=0.8)
  rng = np.random.default_rng(0)
  stack, *grads = (rng.normal(size=shape).astype(np.float32) for _ in range(5))
  params = {"layers": {"mlp": {"up_proj": {"kernel": stack}}}}
  optimizer = optim.make_optimizer(c, 100)
  alone = optax.contrib.muon(
    optim.schedule(c, 100), beta=0.8, weight_decay=c.weight_decay, consistent_rms=0.2
  )
  step, step_alone = make_step(optimizer), make_step(alone)
  state = jax.jit(optimizer.init)(params)
  layers = list(stack.reshape(-1, *shape[-2:]))
  layer_states = [jax.jit(alone.init)(layer) for layer in layers]
  for grad in grads:
    tree = jax.tree.unflatten(jax.tree.structure(params), [grad])
    params, state = step(tree, state, params)
    clipped = grad * min(1.0, clip_norm / np.linalg.norm(grad)) if clip_norm else grad
    for i, layer in enumerate(layers):
      layers[i], layer_states[i] = step_alone(
        clipped.reshape(-1, *shape[-2:])[i], layer_states[i], layer
      )
  # Each Newton-Schulz iteration multiplies roundings by up to 3.4 (its slope at zero): 3.4⁵ ≈ 450.
  atol = 4 * 450 * 0.05 * EPS * 4
  np.testing.assert_allclose(
    jax.tree.leaves(params)[0].reshape(-1, *shape[-2:]), np.stack(layers), rtol=0, atol=atol
  )


def test_muon_leaves_experts_on_their_devices():
  optimizer = optim.make_optimizer(config(name="muon"), 100)
  layout = layouts.layout(data=1, fsdp=2, expert=4)
  own = layout.sharding("layers", "experts", "embed_param", None)
  kernel = jax.ShapeDtypeStruct((3, 8, 32, 64), jnp.float32, sharding=own)
  params = {"layers": {"moe": {"up_proj": {"kernel": kernel}}}}
  state = jax.tree.map(
    lambda leaf: leaf.update(sharding=own if leaf.ndim == 4 else layout.everywhere),
    jax.eval_shape(optimizer.init, params),
  )
  text = jax.jit(optimizer.update).lower(params, state, params).compile().as_text()
  # Matrices of 3 layers and 2 experts each are exchanged along D, and no other expert's.
  assert "f32[6," in text and not re.search(r"f32\[(24,|3,8,|8,3,)", text)


def test_muon_leaves_all_but_the_kernels_of_layers_to_adamw():
  params, grads = parameters(), [parameters(seed) for seed in range(1, 4)]
  moved = {}
  for name in ("adamw", "muon"):
    c = config(name=name, **STEADY)
    optimizer = optim.make_optimizer(c, 100, ["combinator/mix"])
    state, moved[name] = optimizer.init(params), params
    for grad in grads:
      updates, state = jax.jit(optimizer.update)(grad, state, moved[name])
      moved[name] = optax.apply_updates(moved[name], updates)
  for row, *pair in zip(
    optim.parameter_rows(params, c), *map(jax.tree.leaves, moved.values()), strict=True
  ):
    same = np.array_equal(*pair)
    assert same == (row.path != "layers/attention/q_proj/kernel"), row.path


def test_muon_keeps_one_moment_of_a_matrix_and_adam_two():
  params = parameters()
  state = optim.make_optimizer(config(name="muon"), 100).init(params)
  kept = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim > 1)
  kernel = params["layers"]["attention"]["q_proj"]["kernel"].size
  assert kept == 2 * sum(leaf.size for leaf in jax.tree.leaves(params)) - kernel
