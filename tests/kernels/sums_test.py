"""Sums of products over a first axis: values and derivatives, and how platforms take them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.kernels.sums import sum_of_products
from resjax.testing.compare import assert_close
from tests.helpers.gpus import lowered

RNG = np.random.default_rng(0)
VALUES = np.float32(RNG.normal(size=(3, 4, 6)))
WEIGHTS = {
  "of a term": np.float32(RNG.normal(size=(3, 1, 1))),
  "of a token": np.float32(RNG.normal(size=(3, 4, 1))),
  "of a channel": np.float32(RNG.normal(size=(3, 1, 6))),
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_values_and_derivatives_are_those_of_einsum(weights):
  def loss(sum_up, weights, values):
    return jnp.sum(jnp.sin(sum_up(weights, values)))

  def by_einsum(weights, values):
    return jnp.einsum("n...,n...->...", jnp.broadcast_to(weights, values.shape), values)

  both = [
    jax.jit(jax.value_and_grad(lambda w, v, f=f: loss(f, w, v), (0, 1)))(weights, VALUES)
    for f in (sum_of_products, by_einsum)
  ]
  assert_close(both[0], both[1], 1e-6)
  second = [
    jax.jit(jax.jacfwd(jax.grad(lambda w, f=f: loss(f, w, VALUES))))(weights)
    for f in (sum_of_products, by_einsum)
  ]
  assert_close(second[0], second[1], 1e-6)


@pytest.mark.parametrize(
  ("platform", "count", "reduces"),
  [("cpu", 3, False), ("cpu", 33, True), ("tpu", 3, True), ("cuda", 3, True)],
)
def test_a_cpu_adds_few_terms_and_others_reduce(platform, count, reduces):
  """Added terms cost ten times less on a CPU, and up to twice the memory traffic on a TPU."""
  values, weights = jnp.ones((count, 4, 6), jnp.bfloat16), jnp.ones((count, 4, 1))
  text = lowered(sum_of_products, weights, values, platform=platform)
  assert ("stablehlo.reduce" in text) == reduces
  assert ("stablehlo.slice" in text) != reduces
  grad = jax.grad(lambda v: jnp.sum(jnp.sin(sum_of_products(weights, v))))
  assert ("stablehlo.concatenate" in lowered(grad, values, platform=platform)) != reduces
