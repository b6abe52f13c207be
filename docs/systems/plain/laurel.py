"""LAuReL: learned weights, low-rank maps and earlier streams beside the residual add."""

import jax


def laurel(params, x, branches, *, variant="rw+lr", num_previous=3, normalize="none"):
  """Computes α f(norm(x)) + β (x + maps of this stream and of earlier ones).

  params, by the words of the variant:
    rw: mix [L, S, 2], which are α and β, or their logits.
    lr: down [L, S, D, r] and up [L, S, r, D], a map of the stream.
    pa: gamma [N], a number for each sublayer and each stream that it sees; with lr maps of
      their own, down [N, D, r] and up [N, r, D].
  """
  words, streams, n = variant.split("+"), [x], 0  # streams: newest first
  for i, layer in enumerate(branches):
    for s, (norm, f) in enumerate(layer):
      alpha, beta = 1.0, 1.0
      if "rw" in words:
        mix = params["mix"][i, s]
        alpha, beta = jax.nn.softmax(mix) if normalize == "softmax" else mix
      linear = x
      if "pa" in words:
        for y in streams[:num_previous]:
          if "down" in params:
            at = n if "lr" in words else (i, s)
            y = y @ params["down"][at] @ params["up"][at]
          linear = linear + params["gamma"][n] * y
          n += 1
      elif "lr" in words:
        linear = x + x @ params["down"][i, s] @ params["up"][i, s]
      x = alpha * f(norm(x)) + beta * linear
      streams.insert(0, x)
  return x
