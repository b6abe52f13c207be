"""Gated Residual: R streams whose reads gate channels, in place of the model's norms."""

import jax
import jax.numpy as jnp


def read(streams, gain, down, up, eps):
  """Returns the normalised streams [B, T, R, D], and the gated mean of them [B, T, D]."""
  r = streams.shape[2]
  normed = gain * streams / jnp.sqrt(jnp.mean(streams**2, axis=-1, keepdims=True) + eps)
  z = jax.nn.silu(jnp.einsum("btrd,rdk->btk", normed, down) / r)
  gates = jax.nn.sigmoid(jnp.einsum("btk,rkd->btrd", z, up))
  return normed, jnp.sum(gates * normed, axis=2) / r


def gated_residual(params, x, branches, *, num_streams=4, eps=1e-6):
  """Every stream takes a share of each output, which all streams together decide.

  params: gain [L, S, R, D], or [L, S, 1, D] for all streams; down [L, S, R, D, K], up
    [L, S, R, K, D], inject [L, S, R, D, R]; final_gain, final_down and final_up.
  """
  streams = jnp.repeat(x[:, :, None], num_streams, axis=2)
  for i, layer in enumerate(branches):
    for s, (_, f) in enumerate(layer):
      gain, down, up, inject = (
        params[name][i, s] for name in ("gain", "down", "up", "inject")
      )
      normed, h = read(streams, gain, down, up, eps)
      shares = jnp.einsum("btrd,rdn->btn", normed, inject) / num_streams
      streams = streams + 2 * jax.nn.sigmoid(shares)[..., None] * f(h)[:, :, None]
  return read(streams, params["final_gain"], params["final_down"], params["final_up"], eps)[
    1
  ]
