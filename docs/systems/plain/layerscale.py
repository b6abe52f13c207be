"""LayerScale: a learned factor for each channel of what is added."""


def layerscale(params, x, branches):
  """Adds scale ⊙ f(norm(x)); params: scale [L, S, D]."""
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      x = x + params["scale"][i, s] * f(norm(x))
  return x
