"""Gated reads of residual streams: their equations in float64, and arguments for them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from resjax.kernels.gated_streams import gated_read

EPS = 1e-6
NAMES = ("streams", "gain", "down", "up", "inject")


def example(count, shared, injected, rank, dtype, tokens, width):
  """Arguments of a read, and cotangents of its results; numbers that `dtype` holds.

  The weights are numbers that `dtype` holds too, so that no factor of a product is rounded.
  """
  rng = np.random.default_rng(count)

  def held(*shape, scale=1.0):
    return np.float64((scale * rng.normal(size=shape)).astype(dtype))

  def number(*shape):
    return np.float64(np.float32(rng.normal(size=shape)))

  arguments = {
    "streams": held(count, *tokens, width),
    "gain": 1 + number(1 if shared else count, width) / 4,
    "down": held(count, width, rank, scale=width**-0.5),
    "up": held(count, rank, width, scale=2 * rank**-0.5),
  }
  cotangents = [held(*tokens, width)]
  if injected:
    arguments["inject"] = held(count, width, count, scale=width**-0.5)
    cotangents += number(count, *tokens), held(count, *tokens, width)
  return arguments, tuple(cotangents)


def _by_equations(streams, gain, down, up, inject=None):
  """What `gated_read` returns, as its docstring says it, without a line of the library."""
  count = len(streams)
  normed = streams / jnp.sqrt(jnp.mean(streams**2, axis=-1, keepdims=True) + EPS)
  normed = normed * gain.reshape(len(gain), *[1] * (streams.ndim - 2), -1)
  z = jnp.einsum("s...d,sdk->...k", normed, down) / count
  gates = jax.nn.sigmoid(jnp.einsum("...k,skd->s...d", z * jax.nn.sigmoid(z), up))
  x = jnp.mean(gates * normed, axis=0)
  if inject is None:
    return (x,)
  return x, jnp.einsum("s...d,sdk->k...", normed, inject) / count, streams


def _with_gradients(read, arguments, cotangents):
  found, vjp = jax.vjp(lambda given: read(**given), arguments)
  like = [jnp.asarray(d, x.dtype) for d, x in zip(cotangents, found, strict=True)]
  return found, vjp(tuple(like))[0]


@functools.cache
def wanted(*case):
  """Results of a read and all gradients by the equations in float64, for `example(*case)`."""
  with jax.enable_x64(True):
    run = jax.jit(functools.partial(_with_gradients, _by_equations))
    return jax.tree.map(np.float64, run(*example(*case)))


def got(implementation, interpret, *case, **options):
  """The same by `gated_read`."""
  arguments, cotangents = example(*case)
  streams = jnp.asarray(arguments["streams"], case[4])
  arguments = {name: jnp.asarray(x, jnp.float32) for name, x in arguments.items()}

  def read(**arguments):
    found = gated_read(
      *(arguments.get(name) for name in NAMES), eps=EPS, implementation=implementation,
      interpret=interpret, **options,
    )  # fmt: skip
    return tuple(x for x in found if x is not None)

  run = jax.jit(functools.partial(_with_gradients, read))
  return jax.tree.map(np.float64, run(arguments | {"streams": streams}, cotangents))
