"""DeepCrossAttention: queries, keys, values and the stream are mixes of their own."""

import jax
import jax.numpy as jnp


def mixed(sources, bias, query):
  """Returns Σ_j (b_j + relu(g_j · query)) ⊙ g_j; bias [N] or [N, D], query [D] or None."""
  total = 0
  for g, b in zip(sources, bias, strict=True):
    total = total + (b if query is None else b + jax.nn.relu(g @ query)[..., None]) * g
  return total


def gathered(outputs, last):
  """Returns all outputs, or the embedding, the sum of the middle and the last ones."""
  embedding, *rest = outputs
  if last == 0 or len(rest) <= last:
    return outputs
  return [embedding, sum(rest[:-last]), *rest[-last:]]


def deep_cross_attention(params, x, branches, *, last=0):
  """An output is what the sublayers of a layer add, without what they read.

  params: bias [N, 4] or [N, 4, D], for q, k, v and x, of the sources of all layers, one
    after the other; final_bias [N] or [N, D]; query [L, 4, D] and final_query [D].
  """
  outputs, used = [x], 0
  for i, layer in enumerate(branches):
    sources = gathered(outputs, last)
    bias = jnp.moveaxis(params["bias"][used : used + len(sources)], 1, 0)
    query = params["query"][i] if "query" in params else [None] * 4
    q, k, v, x = (mixed(sources, bias[c], query[c]) for c in range(4))
    used += len(sources)
    y = 0
    for s, (norm, f) in enumerate(layer):  # the attention is the first site
      y = y + (f(norm(x + y)) if s > 0 else f(norm(q), norm(k), norm(v)))
    outputs.append(y)
  return mixed(gathered(outputs, last), params["final_bias"], params.get("final_query"))
