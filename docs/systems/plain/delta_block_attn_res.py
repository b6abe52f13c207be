"""Delta Attention Residuals over what completed blocks of layers added."""

import jax
import jax.numpy as jnp


def read(query, gain, sources, num_heads, eps):
  """Returns Σ_j a_j v_j, a = softmax_j(query · gain ⊙ RMS(v_j)), in heads of channels."""
  v = jnp.stack(sources)  # [N, B, T, D]
  keys = gain * v / jnp.sqrt(jnp.mean(v**2, axis=-1, keepdims=True) + eps)
  products = (query * keys).reshape(*v.shape[:-1], num_heads, -1)
  a = jax.nn.softmax(jnp.sum(products, axis=-1, keepdims=True), axis=0)  # [N, B, T, H, 1]
  return jnp.sum(a * v.reshape(products.shape), axis=0).reshape(v.shape[1:])


def delta_block_attn_res(params, x, branches, *, layers_per_block=3, num_heads=1, eps=1e-6):
  """Sources are the embedding, and for each completed block the difference that it made.

  params: query and key_scale [L, S, D].
  Left out: output_gate, null_source, views.
  """
  sources, opened = [x], x  # opened: the stream where the running block began
  for i, layer in enumerate(branches):
    if i > 0 and i % layers_per_block == 0:
      sources.append(x - opened)
      opened = x
    for s, (norm, f) in enumerate(layer):
      h = x + read(
        params["query"][i, s], params["key_scale"][i, s], sources, num_heads, eps
      )
      x = x + f(norm(h))
  return x
