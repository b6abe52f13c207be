"""Combinators in other people's models: plain NNX, Linen through the bridge, NNX without graphs."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from resjax import combinators
from tests.helpers import toy

walk = pytest.mark.parametrize("name", combinators.names())
X = jnp.asarray(toy.embeddings())


class Network(nnx.Module):
  """A hand-written model: no mesh, no config, no decoder."""

  def __init__(self, name, num_layers, rngs):
    self.combinator = combinators.build(
      name, num_layers=num_layers, d_model=toy.D, sites=("mlp",), rngs=rngs
    )
    self.norms = nnx.List([nnx.RMSNorm(toy.D, rngs=rngs) for _ in range(num_layers)])
    self.linears = nnx.List([nnx.Linear(toy.D, toy.D, rngs=rngs) for _ in range(num_layers)])

  def __call__(self, x):
    state = self.combinator.init(x)
    for layer, (norm, linear) in enumerate(zip(self.norms, self.linears, strict=True)):
      views, tape = self.combinator.read(state, layer, "mlp")
      normed = {key: norm(view) for key, view in views.items()}
      out = jnp.tanh(linear(normed["x"]))
      state = self.combinator.write(state, layer, "mlp", out, normed=normed, tape=tape)
    return self.combinator.final(state)


class LinenNetwork(linen.Module):
  """The NNX network inside a Linen one."""

  name_of_combinator: str

  @linen.compact
  def __call__(self, x):
    inner = nnx.bridge.to_linen(Network, self.name_of_combinator, 3)
    return linen.Dense(1)(inner(x))


def squared_error(y):
  return jnp.mean((y - 1.0) ** 2)


@walk
def test_hand_written_nnx_model_learns(name):
  model = Network(name, 3, nnx.Rngs(0))
  optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

  @nnx.jit
  def step(model, optimizer):
    loss, gradients = nnx.value_and_grad(lambda m: squared_error(m(X)))(model)
    optimizer.update(model, gradients)
    return loss

  losses = [float(step(model, optimizer)) for _ in range(20)]
  assert losses[-1] < 0.9 * losses[0]


@walk
def test_inside_a_linen_model(name):
  model = LinenNetwork(name)
  variables = model.init(jax.random.key(0), X)
  assert set(variables) == {"params"}  # a Linen user trains and saves this collection
  y, gradients = jax.value_and_grad(lambda v: squared_error(model.apply(v, X)))(variables)
  leaves = jax.tree.leaves(gradients)
  assert np.isfinite(y) and all(np.isfinite(leaf).all() for leaf in leaves)
  sizes = [leaf.size for leaf in jax.tree.leaves(variables)]
  inner = Network(name, 3, nnx.Rngs(0))
  assert sum(sizes) == toy.D + 1 + sum(leaf.size for leaf in jax.tree.leaves(nnx.state(inner)))


TREE_MODE = """
  import jax, jax.numpy as jnp, numpy as np
  from flax import config, nnx
  from resjax import combinators
  from tests.helpers import toy

  assert config.nnx_graph_mode is False
  layers, x = toy.layers(num_layers=2), jnp.asarray(toy.embeddings())
  for name in combinators.names():
    options = {"layers_per_block": 1} if "layers_per_block" in combinators.options(name) else {}
    made = toy.build(name, options, num_layers=2)
    want, wants = toy.value_and_gradients(toy.by_hand, made, layers, x)
    got, gots = toy.jitted(toy.run, made, layers, x)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    for a, b in zip(jax.tree.leaves(gots), jax.tree.leaves(wants), strict=True):
      np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, abs(b).max()))
  print("checked")
"""


def test_without_nnx_graph_mode():
  env = {**os.environ, "NNX_GRAPH_MODE": "false"}
  command = [sys.executable, "-c", textwrap.dedent(TREE_MODE)]
  done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
  assert done.stdout == "checked\n", done.stderr[-3000:]
