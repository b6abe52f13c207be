"""Learned factors of the stream, which the input may decide."""

import jax


def gate(params, x, branches, *, granularity="layer", kappa=1.0, scope="sublayer"):
  """Multiplies the stream by α before a sublayer (or a whole layer) adds to it.

  params: bias [L, S], or [L] of a depth mixture, which shares out one sum among the layers;
    weight [L, S, D] where each token or channel has its own α. S is 1 for one α a layer.
  """
  bias = params["bias"]

  def alpha(i, s, n):
    if granularity == "depth_mixture":
      return 1 - kappa * (jax.nn.softmax(bias)[i] - 1 / len(branches))
    if granularity == "token":
      return 2 * jax.nn.sigmoid(n @ params["weight"][i, s] + bias[i, s])[..., None]
    if granularity == "channel":
      return 2 * jax.nn.sigmoid(n * params["weight"][i, s] + bias[i, s])
    return 2 * jax.nn.sigmoid(bias[i, s])

  for i, layer in enumerate(branches):
    if scope == "layer":
      first_norm, _ = layer[0]
      start, factor = x, alpha(i, 0, first_norm(x))
      for norm, f in layer:
        x = x + f(norm(x))
      x = factor * start + (x - start)
    else:
      for s, (norm, f) in enumerate(layer):
        n = norm(x)
        x = alpha(i, s, n) * x + f(n)
  return x
