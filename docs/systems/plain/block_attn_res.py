"""Block Attention Residuals: a sublayer reads a softmax over sums of blocks of layers."""

import jax
import jax.numpy as jnp


def rms(v, eps):
  """Returns v / sqrt(mean(v²) + eps)."""
  return v / jnp.sqrt(jnp.mean(v**2, axis=-1, keepdims=True) + eps)


def read(query, gain, sources, num_heads, eps):
  """Returns Σ_j a_j v_j, a = softmax_j(query · gain ⊙ RMS(v_j)), in heads of channels."""
  v = jnp.stack(sources)  # [N, B, T, D]
  products = (query * gain * rms(v, eps)).reshape(*v.shape[:-1], num_heads, -1)
  a = jax.nn.softmax(jnp.sum(products, axis=-1, keepdims=True), axis=0)  # [N, B, T, H, 1]
  return jnp.sum(a * v.reshape(products.shape), axis=0).reshape(v.shape[1:])


def block_attn_res(
  params, x, branches, *, layers_per_block=3, rms_block=False, num_heads=1, eps=1e-6
):
  """Sources: the embedding, a sum for each completed block, the running sum of this one.

  params: query and key_scale [L, S, D]; final_query and final_key_scale [D].
  Left out: first_block, value_norm, key_norm, key_rank, scale, temperature, weights,
    dynamic_query, views.
  """
  blocks, outs = [x], []  # outs: of the sublayers of the running block

  def completed():
    return sum(rms(out, eps) if rms_block else out for out in outs)

  for i, layer in enumerate(branches):
    if i > 0 and i % layers_per_block == 0:
      blocks, outs = [*blocks, completed()], []
    for s, (norm, f) in enumerate(layer):
      sources = [*blocks, sum(outs)] if outs else blocks
      h = read(params["query"][i, s], params["key_scale"][i, s], sources, num_heads, eps)
      outs.append(f(norm(h)))
  sources = [*blocks, completed()]
  return read(params["final_query"], params["final_key_scale"], sources, num_heads, eps)
