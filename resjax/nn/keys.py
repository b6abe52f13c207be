"""Random numbers for the parts of a module, by the name of each part."""

import zlib

import jax.numpy as jnp
from flax import nnx


class Keys:
  """Gives each part of a module a source of initial values that follows from its name.

  So a parameter's first values depend on the seed and on its path, such as
  layers/attention/q_proj/kernel, and not on which parts are made before it. Models that differ in
  some parts begin with the same values of all others.

  Args:
    rngs: the source of the module, from which one key is drawn.
  """

  def __init__(self, rngs: nnx.Rngs):
    self._key = rngs.params()

  def __call__(self, name: str) -> nnx.Rngs:
    """Returns the source of the part of this name."""
    rngs = nnx.Rngs(params=self._key)
    # A source mixes its key with the number of each draw. This first number follows from the name,
    # so that a part costs no more to compile than a draw. Python's own hash of a text would differ
    # from process to process.
    rngs.params.count[...] = jnp.uint32(zlib.crc32(name.encode()))
    return rngs
