"""A gated read of residual streams, as correctness.py checks it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resjax.base import Array, PyTree
from resjax.kernels.gated_streams import gated_read

_SEED = 40


def example(count: int, tokens: int, width: int, dtype: str) -> tuple[dict[str, Array], PyTree]:
  """Returns the arguments of a read, with gates of rank D / 8, and the cotangents of its results.

  Args:
    count: R.
    tokens: T.
    width: D.
    dtype: of the streams; the weights are numbers that it holds, so that products round none.
  """
  rank, seeds = width // 8, iter(range(_SEED, _SEED + 8))

  def normal(*shape: int, scale: float = 1.0, dtype: str = "float32") -> Array:
    values = np.random.default_rng([next(seeds), *shape]).standard_normal(shape, np.float32)
    return jnp.asarray(scale * values, jnp.dtype(dtype))

  inputs = {
    "streams": normal(count, tokens, width, dtype=dtype),
    "gain": 1 + normal(count, width) / 4,
    "down": normal(count, width, rank, scale=width**-0.5, dtype=dtype),
    "up": normal(count, rank, width, scale=2 * rank**-0.5, dtype=dtype),
    "inject": normal(count, width, count, scale=width**-0.5, dtype=dtype),
  }
  wide = {name: x if name == "streams" else x.astype(jnp.float32) for name, x in inputs.items()}
  d_x, d_logits = normal(tokens, width, dtype=dtype), normal(count, tokens)
  return wide, (d_x, d_logits, normal(count, tokens, width, dtype=dtype))


def run(inputs: dict[str, Any], options: dict[str, Any]) -> tuple[jax.Array, Any, Any]:
  """Runs a gated read on the arguments of `example`."""
  return gated_read(**inputs, **options)
