"""What a number loses when it is rounded to bfloat16: the next four of its bits, packed in words.

The reverse pass of a merge takes a difference of two products with its output, for which the 8 bits
of bfloat16 are too few where the running sum has most of the weight. Written beside the output,
these cost a quarter of an array where all words are full.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from resjax.typing import Array

_BITS = 4
_STILL_LOST = 16 - _BITS


def are_kept(dtype: jnp.dtype) -> bool:
  """Whether rounding to a dtype loses so much: 11 bits, as float16 has, are enough."""
  return dtype == jnp.bfloat16


def per_word(dtype: jnp.dtype) -> int:
  """Returns how many numbers a word of an integer dtype holds."""
  return jnp.iinfo(dtype).bits // _BITS


def num_words(count: int, dtype: jnp.dtype) -> int:
  """Returns how many words `count` numbers take."""
  return -(-count // per_word(dtype))


def lost(x: Array, rounded: Array) -> Array:
  """Returns the steps of 1/16 from `rounded` to x, -8..7.

  As integers, neighbours among float32 numbers of one sign differ by 1, those of bfloat16 by 2^16,
  whatever the exponent. Half a step up to the next one, 8, becomes 7.

  Args:
    x: float32 [...].
    rounded: x rounded to bfloat16, in float32 [...]; of the same sign, as zero too.

  Returns:
    int32 [...].
  """
  difference = _bits(x) - _bits(rounded)
  return jnp.minimum((difference + (1 << _STILL_LOST - 1)) >> _STILL_LOST, 7)


def pack(steps: Sequence[Array], dtype: jnp.dtype) -> Array:
  """Joins numbers of several arrays to words: Σ_i (steps_i mod 16) 16^i.

  Args:
    steps: of `lost`, up to `per_word(dtype)` arrays [...].
    dtype: of the words, an integer one.

  Returns:
    [...] in `dtype`.
  """
  word = steps[-1] << _BITS * (len(steps) - 1)
  for index, step in enumerate(steps[:-1]):
    word |= (step & 2**_BITS - 1) << _BITS * index
  return word.astype(dtype)


def restore(rounded: Array, words: Array, index: int) -> Array:
  """Returns x to 12 bits.

  Args:
    rounded: float32 [...], as given to `lost`.
    words: of `pack`, in int32 [...].
    index: of the array in the words.

  Returns:
    float32 [...].
  """
  step = (words << 32 - _BITS * (index + 1)) >> 32 - _BITS
  return jax.lax.bitcast_convert_type(_bits(rounded) + (step << _STILL_LOST), jnp.float32)


def _bits(x: Array) -> Array:
  return jax.lax.bitcast_convert_type(x, jnp.int32)
