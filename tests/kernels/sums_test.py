"""Sums over a first axis, and copies along it: values, derivatives, how platforms take them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from resjax.kernels.sums import repeated, sum_of_products
from resjax.testing.compare import assert_close
from tests.helpers.gpus import lowered

RNG = np.random.default_rng(0)
SHAPES = {"of a term": (1, 1), "of a token": (4, 1), "of a channel": (1, 6)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("count", [3, 9])
def test_values_and_derivatives_are_those_of_einsum(count, shape):
  weights, values = (RNG.normal(size=(count, *of)) for of in (shape, (4, 6)))

  def loss(sum_up, weights, values):
    return jnp.sum(jnp.sin(sum_up(weights, values)))

  def by_einsum(weights, values):
    return jnp.einsum("n...,n...->...", jnp.broadcast_to(weights, values.shape), values)

  def found(sum_up):
    of_both = jax.value_and_grad(lambda w, v: loss(sum_up, w, v), (0, 1))
    second = jax.jacfwd(jax.grad(lambda w: loss(sum_up, w, values)))
    return jax.jit(of_both)(weights, values), jax.jit(second)(weights)

  with jax.enable_x64(True):
    assert_close(found(sum_of_products), found(by_einsum), 1e-12)


@pytest.mark.parametrize("count", [3, 9])
@pytest.mark.parametrize("manual", [False, True])
def test_rows_that_devices_share_stay_split(count, manual):
  mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])
  weights, values = (np.float32(RNG.normal(size=(count, 4, last))) for last in (1, 6))
  grad = jax.grad(lambda w, v: jnp.sum(sum_of_products(w, v) ** 2), (0, 1))
  want = grad(weights, values)
  with jax.set_mesh(mesh):
    rows = P(None, "data")
    given = [jax.device_put(x, NamedSharding(mesh, rows)) for x in (weights, values)]
    split = jax.shard_map(grad, in_specs=(rows, rows), out_specs=rows) if manual else grad
    got = jax.jit(split)(*given)
  assert all(part.sharding.spec[:2] == (None, "data") for part in got)
  assert_close(got, want, 1e-6)


@pytest.mark.parametrize(
  ("platform", "count", "reduces"),
  [("cpu", 3, False), ("cpu", 9, False), ("tpu", 3, True), ("tpu", 9, True), ("cuda", 3, True)],
)
def test_a_cpu_adds_terms_and_others_reduce(platform, count, reduces):
  """Added terms cost ten times less on a CPU, and up to twice the memory traffic on a TPU."""
  values, weights = jnp.ones((count, 4, 6), jnp.bfloat16), jnp.ones((count, 4, 1))
  text = lowered(sum_of_products, weights, values, platform=platform)
  assert ("stablehlo.reduce" in text) == reduces
  assert ("stablehlo.slice" in text) == (not reduces and count == 3)
  assert ("stablehlo.while" in text) == (not reduces and count == 9)
  grad = jax.grad(lambda v: jnp.sum(jnp.sin(sum_of_products(weights, v))))
  text = lowered(grad, values, platform=platform)
  assert ("stablehlo.concatenate" in text) == (not reduces and count == 3)


@pytest.mark.parametrize(
  ("platform", "count", "reduces"),
  [("cpu", 8, False), ("cpu", 33, False), ("tpu", 3, True), ("cuda", 3, True)],
)
def test_copies_are_a_broadcast_and_add_their_cotangents(platform, count, reduces):
  cotangent = jnp.float32(RNG.normal(size=(count, 4, 6)))

  def d_copied(copy, x, cotangent):
    return jax.vjp(copy, x)[1](cotangent.astype(x.dtype))[0]

  grad = functools.partial(d_copied, lambda x: repeated(x, count))
  x = jnp.float32(RNG.normal(size=(4, 6)))
  assert ("stablehlo.reduce" in lowered(grad, x, cotangent, platform=platform)) == reduces
  for dtype in (jnp.float32, jnp.bfloat16):
    x = x.astype(dtype)
    np.testing.assert_array_equal(repeated(x, count), np.broadcast_to(x, (count, 4, 6)))
    exact = np.sum(np.float64(cotangent.astype(dtype)), axis=0)
    # bfloat16 is rounded at the end alone, by half of eps at most.
    rounding = {jnp.float32: 4e-7, jnp.bfloat16: 2.0**-8}[dtype]
    assert_close(np.float64(grad(x, cotangent)), exact, rounding)
