"""Checksums of arrays, computed on their devices; they do not depend on mesh, sharding or host."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from resjax.base.typing import Array, PyTree

# The dtype, shape and checksum (16 hex digits) of each array, by its path, as JSON has them.
Record = Mapping[str, Mapping[str, Any]]

# The odd multipliers of two mixers of 32 bits: MurmurHash3's fmix32, and lowbias32 by C. Wellons.
_MIXERS = ((0x85EBCA6B, 0xC2B2AE35), (0x7FEB352D, 0x846CA68B))


def record(tree: PyTree) -> Record:
  """Returns the dtype, shape and checksum of every array of a tree, when they are computed.

  checksum = (Σ_i mix_1(x_i ^ key_i), Σ_i mix_2(x_i + key_i)) mod 2^32

  x_i are the bits of element i, and key_i is its index in the whole array, mixed. Both mixers are
  bijective, so a change of one element changes both sums. No array is gathered, and nothing large
  is copied.

  Args:
    tree: arrays of any sharding, of 1, 2, 4 or 8 bytes an element.
  """
  # The programs run one after the other: several at once may block each other on CPU devices.
  sums = [jax.device_get(_compiled(_everywhere(x))(x)) for x in jax.tree.leaves(tree)]
  return {
    name: {**description, "checksum": f"{int(high):08x}{int(low):08x}"}
    for (name, description), (high, low) in zip(describe(tree).items(), sums, strict=True)
  }


def describe(tree: PyTree) -> dict[str, dict[str, Any]]:
  """Returns the dtype and shape of each array of a tree by its path; arrays may be abstract."""
  return {
    path: {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
    for path, leaf in leaves(tree).items()
  }


def leaves(tree: PyTree) -> dict[str, Any]:
  """Returns the leaves of a tree by their paths, such as layers/mlp/up_proj/kernel."""
  found = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in found}


def differences(saved: Record, wanted: PyTree) -> list[str]:
  """Returns a line for each array that differs between a record and an abstract tree."""
  there = {path: _words(entry) for path, entry in saved.items()}
  here = {path: _words(entry) for path, entry in describe(wanted).items()}
  return [
    f"{path} is {there.get(path, 'missing')} there and {here.get(path, 'missing')} here"
    for path in sorted({*there, *here})
    if there.get(path) != here.get(path)
  ]


def _words(entry: Mapping[str, Any]) -> str:
  return f"{entry['dtype']}{entry['shape']}"


def of_array(x: Array) -> Array:
  """Returns the two sums of the checksum of an array, uint32 [2]."""
  bits = _bits(x)
  key = _mix(_index(bits.shape), *_MIXERS[0])
  mixed = _mix(bits ^ key, *_MIXERS[0]), _mix(bits + key, *_MIXERS[1])
  zero = jnp.zeros((), jnp.uint32)
  # A single reduction gives both sums: two would make XLA write what they share to memory.
  sums = jax.lax.reduce(
    mixed, (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), tuple(range(bits.ndim))
  )
  return jnp.stack(sums)


def not_finite(tree: PyTree, largest: float) -> list[str]:
  """Returns the paths of the arrays that hold NaN, an infinite value, or one of such a magnitude.

  Args:
    tree: arrays of any sharding.
    largest: the magnitude from which on values count.
  """
  most = np.float32(largest)
  return [
    path
    for path, leaf in leaves(tree).items()
    if jnp.issubdtype(leaf.dtype, jnp.inexact)
    and not jax.device_get(_is_below(_everywhere(leaf))(leaf, most))
  ]


@functools.cache
def _is_below(sharding: NamedSharding | None) -> Callable[[Array, np.float32], Array]:
  return jax.jit(lambda x, most: jnp.all(jnp.abs(x) < most), out_shardings=sharding)


def _everywhere(x: Array) -> NamedSharding | None:
  """Returns a sharding with a copy on every device of an array's mesh; None if it has no mesh."""
  if not isinstance(x.sharding, NamedSharding):
    return None
  return NamedSharding(x.sharding.mesh, PartitionSpec())


@functools.cache
def _compiled(sharding: NamedSharding | None) -> Callable[[Array], Array]:
  return jax.jit(of_array, out_shardings=sharding)


def _bits(x: Array) -> Array:
  """Returns the bits of each element as uint32; an element of 8 bytes becomes two."""
  if x.dtype == jnp.bool_:
    return x.astype(jnp.uint32)
  width = min(np.dtype(x.dtype).itemsize, 4)
  return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * width}")).astype(jnp.uint32)


def _index(shape: tuple[int, ...]) -> Array:
  """Returns the row-major index of each element, mod 2^32."""
  index = jnp.zeros(shape, jnp.uint32)
  for axis in range(len(shape)):
    stride = math.prod(shape[axis + 1 :]) % 2**32
    index += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
  return index


def _mix(x: Array, first: int, second: int) -> Array:
  """Returns x with its bits mixed; different x give different results."""
  x = (x ^ (x >> 16)) * jnp.uint32(first)
  x = (x ^ (x >> 13)) * jnp.uint32(second)
  return x ^ (x >> 16)
