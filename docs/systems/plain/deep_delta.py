"""Deep Delta Learning: a sublayer rewrites what the stream holds in the direction of its output."""

import jax
import jax.numpy as jnp


def short_conv(x, taps):
  """Returns y_t = Σ_s taps_s ⊙ x_{t − s} for x [B, T, R, D] and taps [K, R, D]."""
  length, pad = x.shape[1], [(0, 0)] * 2
  return sum(tap * jnp.pad(x, [(0, 0), (s, 0), *pad])[:, :length] for s, tap in enumerate(taps))


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

  params: expand [K, R, D]; mix [L, S, R] and final_mix [R] (or pool and taps [L, S, K, R, D]);
    beta_weight [L, S, D], beta_bias [L, S], value_weight [L, S, R, D].
  Left out: value, beta_hidden.
  """
  state = x[:, :, None]
  if "expand" in params:
    state = short_conv(state, params["expand"])
  state = jnp.broadcast_to(state, (*x.shape[:2], params["value_weight"].shape[2], x.shape[2]))
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      n = norm(compressed(params, "", (i, 0 if shared_compressor else s), state))
      out = f(n)
      k = out / jnp.sqrt(jnp.sum(out**2, axis=-1, keepdims=True) + eps**2)
      beta = 2 * jax.nn.sigmoid(n @ params["beta_weight"][i, s] + params["beta_bias"][i, s])
      change = n @ params["value_weight"][i, s].T - jnp.einsum("btrd,btd->btr", state, k)
      state = state + jnp.einsum("bt,btr,btd->btrd", beta, change, k)
  return compressed(params, "final_", (), state)
