"""Streams in Linen modules: parameters of stacked blocks, branches, remat by hand, random keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from resjax import combinators
from resjax.interop.linen import Layers, Residual, combinator
from resjax.testing import toy
from tests.helpers import walks

L = 3
X = jnp.asarray(toy.embeddings())


def test_branch_init_has_the_gain_of_the_combinator():
  init = Residual("deepnorm", L, toy.D, scaled_init=True).branch_init(nnx.initializers.ones)
  np.testing.assert_allclose(init(jax.random.key(0), (2,), jnp.float32), (8 * L) ** -0.25)


class RawBlock(linen.Module):
  """A block that drives the protocol itself."""

  @linen.compact
  def __call__(self, c, state, layer):
    for site in c.sites:
      views, tape = c.read(state, layer, site)
      out = linen.Dense(toy.D)(views["x"])
      state = c.write(state, layer, site, out, normed=views, tape=tape)
    return state


class RawModel(linen.Module):
  """A Linen model whose remat hands on the number of the layer."""

  kind: str
  static: tuple

  @linen.compact
  def __call__(self, x):
    c = combinator(self.kind, num_layers=L, d_model=toy.D, scaled_init=True)
    state = c.init(x)
    for layer in range(L):
      state = linen.remat(RawBlock, static_argnums=self.static)()(c, state, layer)
    return c.final(state)


@pytest.mark.parametrize("name", ["attn_res", "unet_skips"])
def test_remat_that_traces_the_layer_is_told_how_it_stays_static(name):
  with pytest.raises(ValueError, match=r"static under remat \(static_argnums, where Linen counts"):
    RawModel(name, ()).init(jax.random.key(0), X)
  abstract = jax.eval_shape(RawModel(name, (3,)).init, jax.random.key(0), X)  # as the message says
  assert len(abstract["params"]) == 1 + L


class Partitioned(linen.Module):
  """A block with a parameter that names its axes."""

  @linen.compact
  def __call__(self, x):
    init = linen.with_partitioning(linen.initializers.ones, ("embed",))
    scale = self.param("scale", init, (toy.D,))
    x = x.sublayer("attention", None, lambda x: x * scale)
    return x.sublayer("mlp", None, lambda x: linen.Dense(toy.D)(x))


class Setup(linen.Module):
  """A module with `setup` and without a compact method."""

  kind: str

  def setup(self):
    self.residual = Residual(self.kind, num_layers=L, d_model=toy.D, options={"eps": 1e-5})
    self.layers = Layers(Partitioned(), remat="full", partition_name="depth")

  def __call__(self, x):
    return self.layers(self.residual(x)).final(None)


def test_linen_layers_are_parameters_with_a_leading_axis_that_has_a_name():
  params = jax.eval_shape(Setup("attn_res").init, jax.random.key(0), X)["params"]
  layers = params["layers"]
  assert jax.tree.map(jnp.shape, layers["Dense_0"]) == {"bias": (L, toy.D), "kernel": (L, 8, 8)}
  assert layers["scale"].names == ("depth", "embed") and layers["scale"].value.shape == (L, toy.D)
  own = combinators.build("attn_res", num_layers=L, d_model=toy.D, rngs=nnx.Rngs(0))
  assert jax.tree.map(jnp.shape, params["residual"]["combinator"]) == jax.tree.map(
    jnp.shape, toy.parameters(own)
  )


def test_linen_layers_draw_other_values_for_each_layer():
  kernel = jax.jit(Setup("attn_res").init)(jax.random.key(0), X)["params"]["layers"]["Dense_0"]
  assert len(np.unique(np.asarray(kernel["kernel"])[:, 0, 0])) == L


@walks.names("muddformer")
def test_no_box_reaches_a_user_of_linen(name):
  class Model(linen.Module):
    @linen.compact
    def __call__(self, x):
      return combinator(name, num_layers=L, d_model=toy.D, scaled_init=True).init(x)

  variables = jax.eval_shape(Model().init, jax.random.key(0), X)
  leaves = jax.tree.leaves(variables, is_leaf=lambda leaf: hasattr(leaf, "unbox"))
  assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


class Dropped(linen.Module):
  """A block whose dropout has its key as an argument."""

  @linen.compact
  def __call__(self, x, key):
    dropout = linen.Dropout(0.5, deterministic=False)

    def branch(h):
      return dropout(linen.Dense(toy.D)(h), rng=jax.random.fold_in(key, x.layer))

    x = x.sublayer("attention", toy.rms_norm, branch)
    return x.sublayer("mlp", toy.rms_norm, linen.Dense(toy.D))


@pytest.mark.parametrize("name", ["gate", "attn_res"])
def test_random_keys_reach_stacked_blocks_as_arguments(name):
  class Model(linen.Module):
    @linen.compact
    def __call__(self, x, key):
      return Layers(Dropped(), remat="full")(
        Residual(name, L, toy.D, scaled_init=True)(x), key
      ).final(None)

  one, other = jax.random.key(1), jax.random.key(2)
  params = jax.jit(Model().init)(jax.random.key(0), X, one)
  loss = jax.jit(jax.value_and_grad(lambda p, key: (Model().apply(p, X, key) ** 2).sum()))
  value, gradients = loss(params, one)
  assert value == loss(params, one)[0] and value != loss(params, other)[0]
  assert all(np.any(leaf) for leaf in jax.tree.leaves(gradients["params"]["Layers_0"]))
