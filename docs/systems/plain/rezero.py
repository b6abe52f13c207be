"""ReZero: a learned factor, zero at first, of what is added."""


def rezero(params, x, branches, *, granularity="layer", pre_norm=False):
  """Adds α times what a sublayer returns, by default without a norm before it.

  params: alpha [L], or [L, S] with a factor for each sublayer.
  """
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      alpha = params["alpha"][i] if granularity == "layer" else params["alpha"][i, s]
      x = x + alpha * f(norm(x) if pre_norm else x)
  return x
