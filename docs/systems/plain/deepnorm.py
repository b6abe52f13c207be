"""DeepNorm: a norm behind the sum, whose stream weighs more the deeper the network is."""

import jax.numpy as jnp


def layer_norm(x, scale, bias, eps):
  """Returns scale ⊙ (x − mean(x)) / sqrt(var(x) + eps) + bias."""
  centred = x - jnp.mean(x, axis=-1, keepdims=True)
  return (
    scale * centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + eps) + bias
  )


def deepnorm(params, x, branches, *, alpha=0.0, eps=1e-5):
  """Computes LN(α x + f(x)); sublayers have no norm of their own.

  params: norm_scale and norm_bias [L, S, D]. An alpha of 0 stands for N^(1/4), where N is
    the number of sublayers.
  """
  alpha = alpha or sum(map(len, branches)) ** 0.25
  for i, layer in enumerate(branches):
    for s, (_, f) in enumerate(layer):
      x = layer_norm(
        alpha * x + f(x), params["norm_scale"][i, s], params["norm_bias"][i, s], eps
      )
  return x
