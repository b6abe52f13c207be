"""Attenuated residual paths: chosen layers keep less of the stream."""

import jax.numpy as jnp


def attenuation(params, x, branches, *, layers=(-1,), alpha=0.5, scope="sublayer"):
  """Multiplies the stream by alpha at chosen layers; there are no parameters.

  Left out: cut_sites.
  """
  factors = jnp.ones(len(branches)).at[jnp.array(layers)].set(alpha)
  for factor, layer in zip(factors, branches, strict=True):
    if scope == "layer":
      start = x
      for norm, f in layer:
        x = x + f(norm(x))
      x = factor * start + (x - start)
    else:
      for norm, f in layer:
        x = factor * x + f(norm(x))
  return x
