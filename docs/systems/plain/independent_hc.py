"""Independent Hyper-Connections: R streams that are read and written, and never mixed."""

import jax
import jax.numpy as jnp


def logits(streams, projection, eps):
  """Returns a projection [R, D, N] of all streams [B, T, R, D], normalised together."""
  square = jnp.mean(streams**2, axis=(-2, -1), keepdims=True)
  return jnp.einsum("btrd,rdn->btn", streams / jnp.sqrt(square + eps), projection)


def independent_hc(
  params, x, branches, *, num_streams=4, magnitude=2.0, gate_eps=1e-6, eps=1e-6
):
  """All R streams together decide how they are read and written, for every token.

  params: projection [L, S, R, D, 2 R], bias [L, S, 2 R], scale [L, S, 2]; head_projection
    [R, D, R], head_bias [R] and head_scale [1] of the last read.
  Left out: read_site, head.
  """
  r = num_streams
  streams = jnp.repeat(x[:, :, None], r, axis=2)  # [B, T, R, D]
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      bias, scale = params["bias"][i, s], params["scale"][i, s]
      pre, post = jnp.split(logits(streams, params["projection"][i, s], eps), 2, axis=-1)
      pre = jax.nn.sigmoid(scale[0] * pre + bias[:r]) + gate_eps
      post = magnitude * jax.nn.sigmoid(scale[1] * post + bias[r:]) + gate_eps
      out = f(norm(jnp.einsum("btr,btrd->btd", pre, streams)))
      streams = streams + post[..., None] * out[:, :, None]
  last = params["head_scale"] * logits(streams, params["head_projection"], eps)
  pre = jax.nn.sigmoid(last + params["head_bias"]) + gate_eps
  return jnp.einsum("btr,btrd->btd", pre, streams)
