"""Checksums of arrays, taken where they lie: the same on every mesh, sharding and host."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from resjax.typing import Array, PyTree

# Path of an array to its dtype, shape and checksum (16 hex digits), as JSON has it.
Record = Mapping[str, Mapping[str, Any]]

# Odd multipliers of two mixers of 32 bits (MurmurHash3 fmix32; lowbias32 of C. Wellons).
_MIXERS = ((0x85EBCA6B, 0xC2B2AE35), (0x7FEB352D, 0x846CA68B))


def record(tree: PyTree) -> Record:
  """Returns dtype, shape and checksum of every array of a tree; waits until they are computed.

  checksum = (Σ_i mix_1(x_i ^ key_i), Σ_i mix_2(x_i + key_i)) mod 2^32, where x_i are the bits of
  element i, key_i is its index in the whole array, mixed, and both mixers are bijective: whatever
  changes one element changes both sums. Nothing is gathered, nothing large is copied.

  Args:
    tree: arrays of any sharding, of 1, 2, 4 or 8 bytes an element.
  """
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  arrays = [leaf for _, leaf in leaves]
  # One after the other: devices of a CPU that run several programs at once may lock up.
  sums = [jax.device_get(_compiled(_everywhere(x))(x)) for x in arrays]
  return {
    name: {**description, "checksum": f"{int(high):08x}{int(low):08x}"}
    for (name, description), (high, low) in zip(describe(tree).items(), sums, strict=True)
  }


def describe(tree: PyTree) -> dict[str, dict[str, Any]]:
  """Returns path to dtype and shape of a tree of arrays or of their abstract values."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): {
      "dtype": str(leaf.dtype),
      "shape": list(leaf.shape),
    }
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def differences(saved: Record, wanted: PyTree) -> list[str]:
  """Returns in words where the arrays of a record are not those of an abstract tree."""
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
  """Returns the two sums of an array, uint32 [2]."""
  bits = _bits(x)
  key = _mix(_index(bits.shape), *_MIXERS[0])
  mixed = _mix(bits ^ key, *_MIXERS[0]), _mix(bits + key, *_MIXERS[1])
  zero = jnp.zeros((), jnp.uint32)
  # One reduction of both: two of them would make XLA write out what they share.
  sums = jax.lax.reduce(
    mixed, (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), tuple(range(bits.ndim))
  )
  return jnp.stack(sums)


def _everywhere(x: Array) -> NamedSharding | None:
  """Returns the sharding of a result that every device and process of an array's mesh has."""
  if not isinstance(x.sharding, NamedSharding):
    return None
  return NamedSharding(x.sharding.mesh, PartitionSpec())


@functools.cache
def _compiled(sharding: NamedSharding | None):
  """Returns `of_array`, compiled once for all arrays of a kind: a model has few of them."""
  return jax.jit(of_array, out_shardings=sharding)


def _bits(x: Array) -> Array:
  """Returns the bits of each element as uint32; an element of 8 bytes is two along a last axis."""
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
  """Returns x with its bits mixed; no two x have the same."""
  x = (x ^ (x >> 16)) * jnp.uint32(first)
  x = (x ^ (x >> 13)) * jnp.uint32(second)
  return x ^ (x >> 16)
