"""Highway networks: a gate shares out between the stream and what is added."""

import jax


def highway(params, x, branches):
  """Keeps (1 − g) of the stream and takes g of the sublayer, g = σ(x W + b).

  params: weight [L, S, D, D] and bias [L, S, D]; [L, S, D, 1], [L, S, 1] for one g a token.
  """
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      g = jax.nn.sigmoid(x @ params["weight"][i, s] + params["bias"][i, s])
      x = (1 - g) * x + g * f(norm(x))
  return x
