"""Projected attention along depth, over a window of layers."""

import math

import jax
import jax.numpy as jnp


def rms(v, eps):
  """Returns v / sqrt(mean(v²) + eps)."""
  return v / jnp.sqrt(jnp.mean(v**2, axis=-1, keepdims=True) + eps)


def depth_attention(params, x, branches, *, window=8, eps=1e-6):
  """Every layer begins with an attention of the stream over those that recent layers left.

  params: query, key and value [L, D, H, C]; output [L, H, C, D].
  """
  streams = [x]  # the embedding, and what every layer left
  for i, layer in enumerate(branches):
    sources = rms(jnp.stack(streams[-window:]), eps)
    q = jnp.einsum("btd,dhc->bthc", rms(x, eps), params["query"][i])
    k = jnp.einsum("nbtd,dhc->nbthc", sources, params["key"][i])
    v = jnp.einsum("nbtd,dhc->nbthc", sources, params["value"][i])
    scores = jnp.einsum("bthc,nbthc->nbth", q, k) / math.sqrt(q.shape[-1])
    mixed = jnp.einsum("nbth,nbthc->bthc", jax.nn.softmax(scores, axis=0), v)
    x = x + jnp.einsum("bthc,hcd->btd", mixed, params["output"][i])
    for norm, f in layer:
      x = x + f(norm(x))
    streams.append(x)
  return x
