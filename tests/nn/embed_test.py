"""The embedding's gradient in 16-bit training, and what devices exchange for a lookup."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.base.sharding import Layout
from resjax.nn.linear import Embedding
from resjax.testing.compare import assert_close
from tests.helpers import layouts

LONG = {"fsdp": 2, "tensor": 2, "sequence": 2}


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


def lookup(layout, width):
  """The gradient of a loss of rows that are looked up, compiled, and its arguments."""
  sizes = {"max_positions": 0, "std": 1.0, "dtype": jnp.bfloat16}
  graphdef, state = nnx.split(Embedding(64, width, layout=layout, rngs=nnx.Rngs(0), **sizes))
  tokens = jnp.asarray(np.random.default_rng(0).integers(0, 64, (8, 6)))
  if layout.has_mesh:
    state = jax.device_put(state, layout.sharding("vocab", "embed_param"))
    tokens = jax.device_put(tokens, layout.sharding("batch", "tokens"))
  weights = jnp.arange(8 * 6 * width).reshape(8, 6, width) / (8 * 6 * width)

  def total(state, tokens):
    rows = nnx.merge(graphdef, state)(tokens, tokens).astype(jnp.float32)
    return jnp.sum(weights * rows**2)

  return jax.jit(jax.value_and_grad(total)).lower(state, tokens).compile(), (state, tokens)


@pytest.mark.parametrize("rules, mesh", [("fsdp", {"fsdp": 8}), ("long_context", LONG)])
def test_devices_exchange_rows_instead_of_the_table(rules, mesh):
  program, arguments = lookup(layouts.layout(rules, **{"data": 1} | mesh), 1024)
  text = program.as_text()
  gathered = re.findall(r"= (\w+)\[[\d,]*\]\S* all-gather(?:-start)?\(", text)
  assert set(gathered) <= {"s32", "pred"}  # numbers of tokens, and no part of the table
  assert " all-to-all(" in text
  whole, of_whole = lookup(Layout(), 1024)
  assert_close(program(*arguments), whole(*of_whole), 1e-6)


def test_few_columns_are_gathered():
  text = lookup(layouts.layout("fsdp", data=1, fsdp=8), 512)[0].as_text()
  assert re.search(r"= f32\[64,512\]\S* all-gather", text)
  assert " all-to-all(" not in text
