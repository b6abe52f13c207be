"""What rounding to bfloat16 takes from a number: the next four of its bits, packed in words.

The reverse pass of a merge subtracts two products with the output of the merge. Where the running
sum has most of the weight, the 8 bits of bfloat16 are too few for this difference. So the forward
pass writes four more bits of every element beside its output; if all words are full, these take a
quarter of the memory of the output.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from resjax.base import Array

_BITS = 4  # that are kept of the 16 bits that rounding takes
_DROPPED_BITS = 16 - _BITS


def is_kept(dtype: jnp.dtype) -> bool:
  """Returns whether an output of this dtype needs the bits; the 11 bits of float16 are enough."""
  return dtype == jnp.bfloat16


def per_word(dtype: jnp.dtype) -> int:
  """Returns how many remainders a word of an integer dtype holds."""
  return jnp.iinfo(dtype).bits // _BITS


def num_words(count: int, dtype: jnp.dtype) -> int:
  """Returns how many words `count` remainders take."""
  return -(-count // per_word(dtype))


def remainder(x: Array, rounded: Array) -> Array:
  """Returns x − rounded in sixteenths of the spacing of bfloat16 numbers there, -8..7.

  If the bits of a number are read as an integer, neighbouring float32 numbers of one sign differ by
  1 and neighbouring bfloat16 numbers by 2^16, whatever the exponent. Exactly half a spacing upwards
  would be 8 and becomes 7.

  Args:
    x: float32 [...].
    rounded: x rounded to bfloat16, as float32 [...]; it has the sign of x, also where it is zero.

  Returns:
    int32 [...].
  """
  difference = _bits(x) - _bits(rounded)
  return jnp.minimum((difference + (1 << _DROPPED_BITS - 1)) >> _DROPPED_BITS, 7)


def pack(remainders: Sequence[Array], dtype: jnp.dtype) -> Array:
  """Joins the remainders of several arrays to words: Σ_i (remainders_i mod 16) 16^i.

  Args:
    remainders: up to `per_word(dtype)` arrays [...] that `remainder` returned.
    dtype: integer dtype of the words.

  Returns:
    [...] in `dtype`.
  """
  word = remainders[-1] << _BITS * (len(remainders) - 1)
  for index, number in enumerate(remainders[:-1]):
    word |= (number & 2**_BITS - 1) << _BITS * index
  return word.astype(dtype)


def restore(rounded: Array, words: Array, index: int) -> Array:
  """Returns an array to 12 significant bits, from its bfloat16 rounding and its packed remainder.

  Args:
    rounded: float32 [...], the second argument of `remainder`.
    words: the result of `pack`, as int32 [...].
    index: position of the array in the argument of `pack`.

  Returns:
    float32 [...].
  """
  number = (words << 32 - _BITS * (index + 1)) >> 32 - _BITS
  return jax.lax.bitcast_convert_type(_bits(rounded) + (number << _DROPPED_BITS), jnp.float32)


def _bits(x: Array) -> Array:
  return jax.lax.bitcast_convert_type(x, jnp.int32)
