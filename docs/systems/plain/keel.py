"""KEEL: a norm behind every sum, in which the stream weighs as much as all branches."""

import jax.numpy as jnp


def keel(params, x, branches, *, alpha=0.0, eps=1e-6):
  """The first layer has no factor, and its first site no norm behind the sum.

  params: gain [L, S, D]; alpha 0 stands for L · S.
  """
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      factor = (alpha or len(branches) * len(layer)) if i else 1
      out = factor * x + f(norm(x))
      if i or s:
        out = out / jnp.sqrt(jnp.mean(out**2, axis=-1, keepdims=True) + eps)
        out = params["gain"][i, s] * out
      x = out
  return x
