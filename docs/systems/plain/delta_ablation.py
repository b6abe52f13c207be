"""Ablations of Delta Attention Residuals: which sources, and whether the stream stays."""

import jax
import jax.numpy as jnp


def read(query, gain, sources, num_heads, eps):
  """Returns Σ_j a_j v_j, a = softmax_j(query · gain ⊙ RMS(v_j)), in heads of channels."""
  v = jnp.stack(sources)  # [N, B, T, D]
  keys = gain * v / jnp.sqrt(jnp.mean(v**2, axis=-1, keepdims=True) + eps)
  products = (query * keys).reshape(*v.shape[:-1], num_heads, -1)
  a = jax.nn.softmax(jnp.sum(products, axis=-1, keepdims=True), axis=0)  # [N, B, T, H, 1]
  return jnp.sum(a * v.reshape(products.shape), axis=0).reshape(v.shape[1:])


def delta_ablation(params, x, branches, *, mode="delta_additive", num_heads=1, eps=1e-6):
  """A site reads the stream and a softmax over sources, or over these and the stream alone.

  params: query and key_scale [L, S, D]; source_gate [L, S, D, D] and source_bias [L, S, D].
  Left out: output_gate, null_source, views.
  """
  outs, streams, first = [], [], []  # first: the last output of the first layer
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      sources = {"full_additive": streams, "full_replace": streams, "first_layer": first}
      sources = sources.get(mode, outs)
      if mode == "pre_gated":
        g = jax.nn.sigmoid(x @ params["source_gate"][i, s] + params["source_bias"][i, s])
        sources = [g * out for out in outs]
      replaces = mode in ("delta_replace", "full_replace", "first_layer")
      sources = [*sources, x] if replaces else sources
      h = 0 if replaces else x
      if sources:
        h = h + read(
          params["query"][i, s], params["key_scale"][i, s], sources, num_heads, eps
        )
      outs.append(f(norm(h)))
      x = x + outs[-1]
      streams.append(x)
    first = first or [outs[-1]]
  return x
