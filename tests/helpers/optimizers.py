"""Settings of the optimizer, and parameters for it."""

import jax
import jax.numpy as jnp
import numpy as np

from configs import base
from resjax.base import ranges
from resjax.train import optim


def config(**changes):
  """The `OptimizerConfig` of configs/base.py with some fields changed."""
  return ranges.read(optim.OptimizerConfig, {**base.optim(), **changes}, "config.optim")


def parameters(seed=0):
  """Parameters, or gradients, whose number of axes tells nothing about what they are."""
  rng = np.random.default_rng(seed)
  shapes = {
    "embed": {"embedding": (11, 4)},
    "output": {"embedding": (11, 4)},
    "layers": {
      # Stacked over three layers: scales and biases have two axes.
      "attention": {"q_proj": {"kernel": (3, 4, 8), "bias": (3, 8)}},
      "norm": {"scale": (3, 4)},
    },
    "combinator": {"query": (3, 4), "mix": {"kernel": (4, 2)}, "mixer": {"kernel": (4, 2)}},
  }
  return jax.tree.map(
    lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32),
    shapes,
    is_leaf=lambda node: isinstance(node, tuple),
  )
