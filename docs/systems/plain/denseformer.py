"""DenseFormer: learned averages of what all layers returned."""

import jax.numpy as jnp


def denseformer(params, x, branches, *, dilation=1, period=1):
  """Replaces the stream after every period-th layer by a weighted sum of layer outputs.

  params: weight [N], the weights of all sums, one after the other. A sum takes every
    dilation-th output, counted back from the newest.
  """
  outputs, used = [x], 0
  for i, layer in enumerate(branches, start=1):
    for norm, f in layer:
      x = x + f(norm(x))
    outputs.append(x)
    if i % period == 0:
      sources = jnp.stack(outputs[i % dilation :: dilation])
      weights = params["weight"][used : used + len(sources)]
      x = jnp.einsum("n,nbtd->btd", weights, sources)
      used += len(sources)
  return x
