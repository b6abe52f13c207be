"""SiameseNorm: a stream with norms and one without, which share their branches."""

import jax.numpy as jnp


def siamese_norm(params, x, branches, *, eps=1e-6):
  """x is normalised at every site, y never; both get what the branch returns.

  params: post_gain and pre_gain [L, S, D], final_post_gain and final_pre_gain [D].
  """

  def rms(z, gain):
    return gain * z / jnp.sqrt(jnp.mean(z**2, axis=-1, keepdims=True) + eps)

  y = x
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      x = rms(x, params["post_gain"][i, s])
      out = f(norm(x + rms(y, params["pre_gain"][i, s])))
      x, y = x + out / jnp.sqrt(len(layer) * (i + 1)), y + out
  return rms(x, params["final_post_gain"]) + rms(y, params["final_pre_gain"])
