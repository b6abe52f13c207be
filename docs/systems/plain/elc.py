"""ELC-BERT: every layer reads a convex combination of what all earlier layers returned."""

import jax
import jax.numpy as jnp


def standardized(x, eps):
  """Returns (x − mean(x)) / sqrt(var(x) + eps)."""
  centred = x - jnp.mean(x, axis=-1, keepdims=True)
  return centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + eps)


def elc(params, x, branches, *, variant="base", weighted_output=False, eps=1e-6):
  """An output is what the sublayers of a layer add, without what they read.

  params: logits [N], those of all choices, one after the other: of layers 1, 2, ... and,
    with weighted_output, of the output.
  """
  outputs, used = [x], 0

  def choice():
    nonlocal used
    shares = jax.nn.softmax(params["logits"][used : used + len(outputs)])
    used += len(outputs)
    return jnp.einsum("n,nbtd->btd", shares, jnp.stack(outputs))

  for i, layer in enumerate(branches):
    h = choice() if i > 0 else x
    y = 0
    for s, (norm, f) in enumerate(layer):
      y = y + f(norm(y if variant == "base" and s > 0 else h + y))
    outputs.append(standardized(y, eps) if variant == "normalized" else y)
  return choice() if weighted_output else outputs[-1]
