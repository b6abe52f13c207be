"""LayerNorm Scaling: the norms of layer ℓ, counted from 1, are divided by √ℓ."""

import jax.numpy as jnp


def lns(params, x, branches, *, eps=1e-6):
  """Adds f(gain ⊙ RMS(x) / √ℓ) in place of f(norm(x)); params: gain [L, S, D]."""
  for i, layer in enumerate(branches):
    for s, (_, f) in enumerate(layer):
      normed = x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps)
      x = x + f(params["gain"][i, s] * normed / jnp.sqrt(i + 1))
  return x
