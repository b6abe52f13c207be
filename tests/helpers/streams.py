"""Reads of residual streams: their equations in float64, and arguments for them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from resjax.kernels.streams import Pending, sinkhorn, stream_read

EPS = 1e-6


def by_logarithms(logits, iterations):
  """Sinkhorn's iteration as the mHC paper writes it, of [R, R, ...]."""
  for _ in range(iterations):
    logits = logits - jax.nn.logsumexp(logits, axis=0, keepdims=True)
    logits = logits - jax.nn.logsumexp(logits, axis=1, keepdims=True)
  return jnp.exp(logits)


def constrained(mix, products, squares, parameters):
  """Coefficients of all streams together, M = mix(logits)."""
  (bias,) = parameters
  count = len(squares)
  z = products * jax.lax.rsqrt(jnp.mean(squares, axis=0) + EPS) + bias
  square = z[2 * count :].reshape(count, count, *z.shape[1:])
  return jax.nn.sigmoid(z[:count]), mix(square), 2 * jax.nn.sigmoid(z[count : 2 * count])


def free(products, squares, parameters):
  """Coefficients of each stream by itself, of any sign; without products M is the identity."""
  (alpha,) = parameters
  if products is not None:
    alpha = alpha + jnp.tanh(products * jax.lax.rsqrt(squares + EPS)[:, None])
  return alpha[:, 0], None if products is None else alpha[:, 2:], alpha[:, 1]


def _coefficients(form, mix):
  return functools.partial(constrained, mix) if form in ("joint", "previous") else free


def example(form, count, dtype, normed, tokens, width):
  """Arguments of a read, and cotangents of its results; numbers that `dtype` holds."""
  rng = np.random.default_rng(count)

  def held(*shape):
    return np.float64(jnp.asarray(rng.normal(size=shape), dtype))

  def number(*shape, above=0):
    return np.float64(np.float32(rng.normal(size=shape) + above))

  columns, shape = {"shared": (2 + count, ()), "static": (0, None)}.get(
    form, (2 * count + count**2, (count,))
  )
  num_weights = (count + (form == "previous")) * (count + 1)
  # The norm would magnify the rounding of a read that nearly cancels.
  reads = 2 * (np.arange(2 + count) == 0)
  return {
    "streams": held(count, *tokens, width),
    "weights": number(num_weights, *tokens),
    "out": held(*tokens, width),
    "projection": None if shape is None else number(*shape, width, columns) / 16,
    "parameters": (
      number(columns) if shape == (count,) else number(count, 2 + count, above=reads),
    ),
    "gain": number(width) if normed else None,
  }, (held(*tokens, width), held(count, *tokens, width), number(num_weights, *tokens))


def _by_equations(form, streams, weights, out, projection, parameters, gain):
  """What `stream_read` returns, as its docstring says it, without a line of the library."""
  count, *tokens, _ = streams.shape
  square = weights.reshape(-1, count + 1, *tokens)
  sources = jnp.concatenate([streams, out[None]])
  written = jnp.einsum("rs...,s...d->r...d", square, sources)
  streams = written[:count]
  products = squares = None
  if projection is not None:
    equation = "r...d,rdk->k..." if projection.ndim == 3 else "r...d,dk->rk..."
    products = jnp.einsum(equation, streams, projection)
    squares = jnp.mean(streams**2, axis=-1)
  spread = [p.reshape(*p.shape, *[1] * len(tokens)) for p in parameters]
  mix = functools.partial(by_logarithms, iterations=20)
  read, mixing, write = _coefficients(form, mix)(products, squares, spread)
  x = written[count] if form == "previous" else jnp.sum(read[..., None] * streams, axis=0)
  if gain is not None:
    x = x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + EPS) * gain
  if mixing is None:
    mixing = jnp.eye(count).reshape(count, count, *[1] * len(tokens))
  mixing = jnp.broadcast_to(mixing, (count, count, *tokens))
  write = jnp.broadcast_to(write, (count, *tokens))
  rows = jnp.concatenate([mixing, write[:, None]], axis=1)
  if form == "previous":
    rows = jnp.concatenate([rows, jnp.einsum("r...,rs...->s...", read, rows)[None]])
  return x, streams, rows.reshape(-1, *tokens)


def _with_gradients(read, arguments, cotangents):
  given = {name: value for name, value in arguments.items() if value is not None}
  absent = {name: None for name in arguments if name not in given}
  found, vjp = jax.vjp(lambda given: read(**given, **absent), given)
  like = [jnp.asarray(d, x.dtype) for d, x in zip(cotangents, found, strict=True)]
  return found, vjp(tuple(like))[0]


@functools.cache
def wanted(form, *case):
  """Results of a read and all gradients by the equations in float64, for `example(form, *case)`."""
  with jax.enable_x64(True):
    arguments, cotangents = example(form, *case)
    run = jax.jit(functools.partial(_with_gradients, functools.partial(_by_equations, form)))
    return jax.tree.map(np.float64, run(arguments, cotangents))


def got(implementation, interpret, form, count, dtype, *case):
  """The same by `stream_read`, whose φ is the second of a stack. The first one must not be used."""

  def read(streams, weights, out, projection, parameters, gain):
    site = None
    if projection is not None:
      projection, site = jnp.stack([jnp.full_like(projection, jnp.nan), projection]), 1
    return stream_read(
      Pending(streams, weights, out), projection, parameters,
      _coefficients(form, functools.partial(sinkhorn, 20)), site, norm_gain=gain, norm_eps=EPS,
      implementation=implementation, interpret=interpret,
    )  # fmt: skip

  arguments, cotangents = example(form, count, dtype, *case)
  narrow = {"streams": dtype, "out": dtype}
  arguments = {
    name: jax.tree.map(lambda x, n=name: jnp.asarray(x, narrow.get(n, jnp.float32)), value)
    for name, value in arguments.items()
  }
  found = jax.jit(functools.partial(_with_gradients, read))(arguments, cotangents)
  return jax.tree.map(np.float64, found)
