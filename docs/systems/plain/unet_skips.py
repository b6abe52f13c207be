"""U-Net skips: layers of the second half see the streams of the first one, mirrored."""


def unet_skips(params, x, branches, *, mix_embedding=False):
  """Pushes the streams of the first half of the layers, pops them before the second.

  params: weight [L // 2] of what is popped; stream_scale and embedding_scale [L] with
    mix_embedding.
  """
  embedding, pushed = x, []
  half = len(branches) // 2
  weights = iter(params["weight"])
  for i, layer in enumerate(branches):
    if mix_embedding:
      x = params["stream_scale"][i] * x + params["embedding_scale"][i] * embedding
    if i >= len(branches) - half:
      x = x + next(weights) * pushed.pop()
    for norm, f in layer:
      x = x + f(norm(x))
    if i < half:
      pushed.append(x)
  return x
