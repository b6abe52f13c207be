"""Deep Delta Learning: a sublayer rewrites the stream in the direction of its output."""

import jax
import jax.numpy as jnp


def short_conv(x, taps):
  """Returns y_t = Σ_s taps_s ⊙ x_{t − s} for x [B, T, R, D] and taps [K, R, D]."""
  padded = jnp.pad(x, [(0, 0), (len(taps) - 1, 0), (0, 0), (0, 0)])
  starts = range(len(taps) - 1, -1, -1)
  return sum(
    tap * padded[:, i : i + x.shape[1]] for i, tap in zip(starts, taps, strict=True)
  )


def compressed(params, prefix, at, state):
  """Returns the stream [B, T, D] that a state [B, T, R, D] is read as."""
  if prefix + "mix" in params:
    return jnp.einsum("r,btrd->btd", params[prefix + "mix"][at], state)
  if prefix + "pool" in params:
    filtered = short_conv(state, params[prefix + "taps"][at])
    return jnp.einsum("r,btrd->btd", params[prefix + "pool"][at], filtered)
  return state[:, :, 0]


def deep_delta(params, x, branches, *, shared_compressor=False, eps=1e-5):
  """Computes X ← X + β k (v − kᵀ X)ᵀ, k = f / |f|, with R values for each of D channels.

  params: expand [K, R, D]; mix [L, S, R], final_mix [R] (or pool, taps [L, S, K, R, D]);
    beta_weight [L, S, D], beta_bias [L, S], value_weight [L, S, R, D].
  Left out: value, beta_hidden.
  """
  state = jnp.repeat(x[:, :, None], params["value_weight"].shape[2], axis=2)
  if "expand" in params:
    state = short_conv(state, params["expand"])
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      n = norm(compressed(params, "", (i, 0 if shared_compressor else s), state))
      out = f(n)
      k = out / jnp.sqrt(jnp.sum(out**2, axis=-1, keepdims=True) + eps**2)
      beta = 2 * jax.nn.sigmoid(n @ params["beta_weight"][i, s] + params["beta_bias"][i, s])
      change = n @ params["value_weight"][i, s].T - jnp.einsum("btrd,btd->btr", state, k)
      state = state + jnp.einsum("bt,btr,btd->btrd", beta, change, k)
  return compressed(params, "final_", (), state)
