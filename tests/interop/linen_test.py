"""Combinators lifted into Linen modules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from resjax import combinators
from resjax.interop.linen import combinator
from resjax.testing import toy
from resjax.testing.compare import assert_close

LAYERS, X = toy.layers(), jnp.asarray(toy.embeddings())


class Model(linen.Module):
  """The toy model with constant branches, in which only the combinator has parameters."""

  kind: str
  options: dict

  @linen.compact
  def __call__(self, x):
    made = combinator(self.kind, num_layers=toy.L, d_model=toy.D, **self.options)
    return toy.run(made, LAYERS, x)


# One combinator without parameters, one with some, and one whose state grows;
# tests/mlp_mixer_test.py walks all names.
@pytest.mark.parametrize(
  ("name", "options"), [("standard", {}), ("gate", {"granularity": "token"}), ("attn_res", {})]
)
def test_parameters_are_linen_parameters_and_values_those_of_nnx(name, options):
  model = Model(name, options)
  abstract = jax.eval_shape(model.init, jax.random.key(0), X)
  made = toy.build(name, options)
  params = toy.parameters(made)
  # A Linen user trains and saves this collection, and no other one.
  variables = {"params": {"combinator": params}} if params else {}
  assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, dict(abstract))
  assert_close(jax.jit(model.apply)(variables, X), toy.compiled_by_hand(made, LAYERS, X), 1e-6)


def test_initial_values_follow_the_key_of_linen(monkeypatch):
  class Random(combinators.Standard):
    def __init__(self, *, rngs, **sizes):
      super().__init__(**sizes)
      self.weight = nnx.Param(rngs.params.normal((self.d_model,)))

  monkeypatch.setattr(combinators, "build", lambda name, rngs, **sizes: Random(rngs=rngs, **sizes))
  model = Model("random", {})
  first, second, again = (
    np.asarray(model.init(jax.random.key(seed), X)["params"]["combinator"]["weight"])
    for seed in (0, 1, 0)
  )
  assert first.shape == (toy.D,) and not np.array_equal(first, second)
  np.testing.assert_array_equal(first, again)


def test_a_wrong_option_is_refused():
  with pytest.raises(ValueError, match="'kappas' is not an option of combinator 'gate'"):
    Model("gate", {"kappas": 1.0}).init(jax.random.key(0), X)
