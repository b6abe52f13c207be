"""The embedding's gradient in 16-bit training."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.nn.embed import Embedding
from resjax.sharding import Layout


def test_gradient_of_a_frequent_token_is_summed_in_float32():
  width, count = 8, 4096
  embed = Embedding(
    5, width, max_positions=count, std=0.02, dtype="bfloat16", layout=Layout(), rngs=nnx.Rngs(0)
  )
  graphdef, state = nnx.split(embed)
  weights = jnp.asarray(np.random.default_rng(0).uniform(0, 1, (1, count, width)), jnp.bfloat16)
  tokens = jnp.full((1, count), 3)
  positions = jnp.zeros_like(tokens)

  def weighted(state):
    return jnp.sum((nnx.merge(graphdef, state)(tokens, positions) * weights).astype(jnp.float32))

  gradient = jax.grad(weighted)(state)
  exact = np.asarray(weights, np.float64).sum((0, 1))
  # float32 sums of 4096 terms; a sum in bfloat16 stops growing at a few hundred.
  for table, row in ((gradient.embedding, 3), (gradient.positions, 0)):
    np.testing.assert_allclose(table[...][row], exact, rtol=4096 * 2**-24)
