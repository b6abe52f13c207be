"""Multi-Gate Residuals: R streams, each of which moves towards outputs by its own gate."""

import math

import jax
import jax.numpy as jnp


def scores(query, streams, eps):
  """Returns query · RMS(stream) / √D for all streams [R, B, T, D]."""
  rms = jnp.sqrt(jnp.mean(streams**2, axis=-1) + eps)
  return streams @ query / rms / math.sqrt(len(query))


def read(query, streams, eps):
  """Returns the softmax-weighted sum of the streams."""
  a = jax.nn.softmax(scores(query, streams, eps), axis=0)
  return jnp.einsum("rbt,rbtd->btd", a, streams)


def multi_gate(params, x, branches, *, num_streams=4, gate="competitive", eps=1e-6):
  """The embedding and R − 1 outputs open the streams; later outputs go into all of them.

  params: query and gate_query [L, S, D]; gate_bias [L, S, 1], the logit of letting none
    move, or [L, S, R] of independent gates; final_query [D].
  """
  streams = x[None]
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      out = f(norm(read(params["query"][i, s], streams, eps)))
      if len(streams) < num_streams:
        streams = jnp.concatenate([streams, out[None]])
        continue
      z, bias = scores(params["gate_query"][i, s], streams, eps), params["gate_bias"][i, s]
      if gate == "independent":
        beta = jax.nn.sigmoid(z + bias[:, None, None])
      else:
        beta = jax.nn.softmax(jnp.concatenate([z, bias + 0 * z[:1]]), axis=0)[:-1]
      streams = (1 - beta[..., None]) * streams + beta[..., None] * out
  return read(params["final_query"], streams, eps)
