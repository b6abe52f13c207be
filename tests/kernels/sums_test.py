"""Sums over a first axis, and copies along it: values, derivatives, how platforms take them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.kernels.sums import repeated, sum_of_products
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


@pytest.mark.parametrize(
  ("platform", "count", "reduces"),
  [("cpu", 32, False), ("cpu", 33, True), ("tpu", 3, True), ("cuda", 3, True)],
)
def test_copies_are_a_broadcast_and_add_their_cotangents(platform, count, reduces):
  cotangent = jnp.float32(RNG.normal(size=(count, 4, 6)))

  def d_copied(copy, x, cotangent):
    return jax.vjp(copy, x)[1](cotangent.astype(x.dtype))[0]

  grad = functools.partial(d_copied, lambda x: repeated(x, count))
  x = jnp.float32(VALUES[0])
  assert ("stablehlo.reduce" in lowered(grad, x, cotangent, platform=platform)) == reduces
  for dtype in (jnp.float32, jnp.bfloat16):
    x = x.astype(dtype)
    np.testing.assert_array_equal(repeated(x, count), np.broadcast_to(x, (count, 4, 6)))
    exact = np.sum(np.float64(cotangent.astype(dtype)), axis=0)
    # bfloat16 is rounded at the end alone, by half of eps at most.
    rounding = {jnp.float32: 4e-7, jnp.bfloat16: 2.0**-8}[dtype]
    assert_close(np.float64(grad(x, cotangent)), exact, rounding)
