"""MUDDFormer: queries, keys, values and the stream are mixes that every token decides."""

import jax
import jax.numpy as jnp


def mixes(newest, outputs, hidden, output, bias, eps):
  """Returns sums of the N outputs, with weights from the newest; output: [N, K, sums]."""
  normed = newest / jnp.sqrt(jnp.mean(newest**2, axis=-1, keepdims=True) + eps)
  inner = jax.nn.gelu(normed @ hidden, approximate=False)
  weights = jnp.einsum("bth,nhc->cnbt", inner, output) + bias.T[..., None, None]
  return jnp.einsum("cnbt,nbtd->cbtd", weights, jnp.stack(outputs))


def muddformer(params, x, branches, *, eps=1e-6):
  """Every layer but the first reads four mixes of the embedding and what all layers left.

  params: hidden [L, D, K]; output [N, K, 4] and bias [N, 4] of the sources of layers 1
    and later, one after the other; final_hidden [D, K], final_output [L + 1, K, 1] and
    final_bias [L + 1, 1].
  Left out: row_sizes, pre_post_norm.
  """
  outputs, used = [x], 0
  for i, layer in enumerate(branches):
    q = k = v = x
    if i > 0:
      rows = slice(used, used + len(outputs))
      weights = params["hidden"][i], params["output"][rows], params["bias"][rows]
      q, k, v, x = mixes(x, outputs, *weights, eps)
      used += len(outputs)
    for s, (norm, f) in enumerate(layer):  # the attention is the first site
      x = x + (f(norm(x)) if s > 0 else f(norm(q), norm(k), norm(v)))
    outputs.append(x)
  final = (params[f"final_{name}"] for name in ("hidden", "output", "bias"))
  return mixes(x, outputs, *final, eps)[0]
