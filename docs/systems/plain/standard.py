"""The plain residual add."""


def standard(params, x, branches):
  """Adds what every sublayer returns to the stream x [B, T, D]; there are no parameters."""
  for layer in branches:
    for norm, f in layer:
      x = x + f(norm(x))
  return x
