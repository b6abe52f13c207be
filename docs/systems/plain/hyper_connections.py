"""Hyper-Connections: R streams, which sublayers read, mix and write by learned weights."""

import jax.numpy as jnp


def rms(v, eps):
  """Returns v / sqrt(mean(v²) + eps)."""
  return v / jnp.sqrt(jnp.mean(v**2, axis=-1, keepdims=True) + eps)


def hyper_connections(
  params, x, branches, *, dynamic=True, tanh=True, norm="layernorm", eps=1e-6
):
  """The weights are learned numbers and, if dynamic, what every stream says of them itself.

  params: alpha [L, S, R, 1 + R], what each stream gives to the read and to each new stream;
    beta [L, S, R]; weight [L, S, D, 2 + R] and scale [L, S, 2] of the dynamic part.
  """
  num_streams = params["beta"].shape[-1]
  streams = jnp.repeat(x[:, :, None], num_streams, axis=2)  # [B, T, R, D]
  for i, layer in enumerate(branches):
    for s, (pre_norm, f) in enumerate(layer):
      alpha, beta = params["alpha"][i, s], params["beta"][i, s]
      if dynamic:
        mean = jnp.mean(streams, axis=-1, keepdims=True) if norm == "layernorm" else 0
        own = rms(streams - mean, eps) @ params["weight"][i, s]  # [B, T, R, 2 + R]
        own = jnp.tanh(own) if tanh else own
        alpha = alpha + params["scale"][i, s, 0] * own[..., :-1]
        beta = beta + params["scale"][i, s, 1] * own[..., -1]
      mixed = jnp.swapaxes(alpha, -1, -2) @ streams  # [B, T, 1 + R, D]
      out = f(pre_norm(mixed[:, :, 0]))
      streams = mixed[:, :, 1:] + beta[..., None] * out[:, :, None]
  return jnp.sum(streams, axis=2)
