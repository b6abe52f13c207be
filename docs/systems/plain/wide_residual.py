"""Wide residuals: R streams, read and written by learned numbers, and never mixed."""

import jax
import jax.numpy as jnp


def wide_residual(params, x, branches, *, num_streams=4, max_forget=0.0):
  """The weights of streams are the same for all tokens, and start nearly alike.

  params: read_logit and write_logit [L, S, R], final_logit [R] of the last read;
    retention_logit [L, S, R] where streams forget.
  Left out: write_spread, retention.
  """
  streams = jnp.repeat(x[:, :, None], num_streams, axis=2)  # [B, T, R, D]
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      shares = jax.nn.sigmoid(params["read_logit"][i, s])
      out = f(norm(jnp.einsum("r,btrd->btd", shares, streams)))
      if max_forget:
        forgets = jax.nn.sigmoid(-params["retention_logit"][i, s])[:, None]
        streams = (1 - max_forget * forgets) * streams
      strength = 2 * jax.nn.sigmoid(params["write_logit"][i, s])[:, None]
      streams = streams + strength * out[:, :, None]
  return jnp.einsum("r,btrd->btd", jax.nn.sigmoid(params["final_logit"]), streams)
