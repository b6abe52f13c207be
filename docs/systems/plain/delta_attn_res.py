"""Delta Attention Residuals: depth attention beside the stream, which stays."""

import jax
import jax.numpy as jnp


def read(query, gain, sources, num_heads, eps):
  """Returns Σ_j a_j v_j, a = softmax_j(query · gain ⊙ RMS(v_j)), in heads of channels."""
  v = jnp.stack(sources)  # [N, B, T, D]
  keys = gain * v / jnp.sqrt(jnp.mean(v**2, axis=-1, keepdims=True) + eps)
  products = (query * keys).reshape(*v.shape[:-1], num_heads, -1)
  a = jax.nn.softmax(jnp.sum(products, axis=-1, keepdims=True), axis=0)  # [N, B, T, H, 1]
  return jnp.sum(a * v.reshape(products.shape), axis=0).reshape(v.shape[1:])


def delta_attn_res(params, x, branches, *, num_heads=1, eps=1e-6):
  """Every site reads the stream and, on top, a softmax over the embedding and all outputs.

  params: query and key_scale [L, S, D].
  Left out: output_gate, null_source, views.
  """
  sources = [x]
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      h = x + read(
        params["query"][i, s], params["key_scale"][i, s], sources, num_heads, eps
      )
      out = f(norm(h))
      sources.append(out)
      x = x + out
  return x
