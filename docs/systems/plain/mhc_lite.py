"""mHC-lite: R streams, mixed by convex combinations of all permutations of them."""

import itertools

import jax
import jax.numpy as jnp


def mhc_lite(params, x, branches, *, num_streams=4, eps=1e-6):
  """All R streams together decide how they are read, written and mixed, for every token.

  params: projection [L, S, R, D, 2 R + R!], bias [L, S, 2 R + R!], scale [L, S, 3].
  Left out: read_site, head.
  """
  r, (batch, length, width) = num_streams, x.shape
  permutations = jnp.eye(r)[jnp.array(list(itertools.permutations(range(r))))]  # [R!, R, R]
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
      shares = jax.nn.softmax(scale[2] * mix + bias[2 * r :], axis=-1)
      out = f(norm(jnp.einsum("btr,btrd->btd", pre, streams)))
      streams = jnp.einsum("btk,kij,btjd->btid", shares, permutations, streams)
      streams = streams + post[..., None] * out[:, :, None]
  return jnp.sum(streams, axis=2)
