"""Manifold-constrained Hyper-Connections: R streams and doubly stochastic mixes of them."""

import jax
import jax.numpy as jnp


def sinkhorn(matrix, iterations):
  """Makes columns, then rows, of positive [..., R, R] sum to one, again and again."""
  for _ in range(iterations):
    matrix = matrix / jnp.sum(matrix, axis=-2, keepdims=True)
    matrix = matrix / jnp.sum(matrix, axis=-1, keepdims=True)
  return matrix


def mhc(params, x, branches, *, num_streams=4, sinkhorn_iterations=20, eps=1e-6):
  """All R streams together decide how they are read, written and mixed, for every token.

  params: projection [L, S, R, D, 2 R + R²], bias [L, S, 2 R + R²], scale [L, S, 3].
  Left out: gate_eps, constraint, read_site, head.
  """
  r, (batch, length, width) = num_streams, x.shape
  streams = jnp.repeat(x[:, :, None], r, axis=2)  # [B, T, R, D]
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      projection = params["projection"][i, s].reshape(r * width, -1)
      bias, scale = params["bias"][i, s], params["scale"][i, s]
      flat = streams.reshape(batch, length, r * width)
      flat = flat / jnp.sqrt(jnp.mean(flat**2, axis=-1, keepdims=True) + eps)
      pre, post, mix = jnp.split(flat @ projection, (r, 2 * r), axis=-1)
      pre = jax.nn.sigmoid(scale[0] * pre + bias[:r])
      post = 2 * jax.nn.sigmoid(scale[1] * post + bias[r : 2 * r])
      mix = jnp.exp(scale[2] * mix + bias[2 * r :]).reshape(batch, length, r, r)
      mix = sinkhorn(mix, sinkhorn_iterations)
      out = f(norm(jnp.einsum("btr,btrd->btd", pre, streams)))
      streams = mix @ streams + post[..., None] * out[:, :, None]
  return jnp.sum(streams, axis=2)
