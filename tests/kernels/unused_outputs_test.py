"""Calls are told which of their outputs have users, and give the derivatives of what they call."""

import jax
import jax.numpy as jnp
import numpy as np

from resjax.kernels import unused_outputs


def _sine_and_square(asked, x):
  def run(needed, x):
    asked.append(needed)
    return [f(x) for f, keep in zip((jnp.sin, jnp.square), needed, strict=True) if keep]

  return unused_outputs.call(run, [jax.ShapeDtypeStruct(x.shape, x.dtype)] * 2, x)


def test_a_function_is_told_which_outputs_have_users():
  asked, x = [], jnp.arange(3.0)
  program = jax.make_jaxpr(lambda x: _sine_and_square(asked, x))(x).jaxpr
  smaller, _ = jax.interpreters.partial_eval.dce_jaxpr(program, [False, True])
  (found,) = jax.core.eval_jaxpr(smaller, (), x)
  np.testing.assert_array_equal(found, x**2)
  assert asked == [(False, True)]


def test_a_call_without_users_is_dropped():
  program = jax.make_jaxpr(lambda x: _sine_and_square([], x))(jnp.arange(3.0)).jaxpr
  smaller, used = jax.interpreters.partial_eval.dce_jaxpr(program, [False, False])
  assert not smaller.eqns and used == [False]


def test_batches_and_derivatives_are_those_of_the_function():
  x = jnp.arange(6.0).reshape(2, 3)
  sine, square = jax.jit(jax.vmap(lambda x: _sine_and_square([], x)))(x)
  np.testing.assert_allclose(sine, jnp.sin(x), rtol=1e-6)
  np.testing.assert_array_equal(square, x**2)
  slope = jax.grad(lambda x: jnp.sum(_sine_and_square([], x)[1]))(x)
  np.testing.assert_array_equal(slope, 2 * x)
