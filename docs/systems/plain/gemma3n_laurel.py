"""The LAuReL of Gemma 3n: a low-rank map beside the attention."""

import math

import jax.numpy as jnp


def rms(v, eps):
  """Returns v / sqrt(mean(v²) + eps)."""
  return v / jnp.sqrt(jnp.mean(v**2, axis=-1, keepdims=True) + eps)


def gemma3n_laurel(params, x, branches, *, eps=1e-6):
  """Adds a low-rank map of what the attention reads; the MLP's write is the plain one.

  params: down [L, D, r], up [L, r, D] and scale [L, D]. The attention is the first site.
  """
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      n = norm(x)
      if s == 0:
        mapped = params["scale"][i] * rms(n @ params["down"][i] @ params["up"][i], eps)
        x = (x + f(n) + n + mapped) / math.sqrt(2)
      else:
        x = x + f(n)
  return x
