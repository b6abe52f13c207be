"""The embedding once more in every layer, as in nanochat."""


def x0_residual(params, x, branches, *, backout=False):
  """Mixes the embedding into the stream at the start of every layer.

  params: stream_scale and embedding_scale [L]; backout_scale [], by which the stream of the
    middle is taken out of the output.
  """
  embedding = x
  for i, layer in enumerate(branches):
    x = params["stream_scale"][i] * x + params["embedding_scale"][i] * embedding
    for norm, f in layer:
      x = x + f(norm(x))
    if i == len(branches) // 2:
      middle = x
  return x - params["backout_scale"] * middle if backout else x
