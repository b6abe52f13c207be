"""Attention Residuals: every sublayer reads a softmax over all earlier outputs."""

import jax
import jax.numpy as jnp


def read(query, gain, sources, num_heads, eps):
  """Returns Σ_j a_j v_j, a = softmax_j(query · gain ⊙ RMS(v_j)), in heads of channels."""
  v = jnp.stack(sources)  # [N, B, T, D]
  keys = gain * v / jnp.sqrt(jnp.mean(v**2, axis=-1, keepdims=True) + eps)
  products = (query * keys).reshape(*v.shape[:-1], num_heads, -1)
  a = jax.nn.softmax(jnp.sum(products, axis=-1, keepdims=True), axis=0)  # [N, B, T, H, 1]
  return jnp.sum(a * v.reshape(products.shape), axis=0).reshape(v.shape[1:])


def attn_res(params, x, branches, *, num_heads=1, eps=1e-6):
  """Keeps the embedding and every output as a source, and reads them anew at every site.

  params: query and key_scale [L, S, D]; final_query and final_key_scale [D].
  Left out: window, value_norm, key_norm, key_rank, scale, temperature, weights,
    dynamic_query, views.
  """
  sources = [x]
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      h = read(params["query"][i, s], params["key_scale"][i, s], sources, num_heads, eps)
      sources.append(f(norm(h)))
  return read(params["final_query"], params["final_key_scale"], sources, num_heads, eps)
