"""What the axes of a user's mesh ask of us: Explicit ones are part of types, Manual ones vary.

JAX derives both for its own operations. It cannot where a function has a derivative of its own,
whose cotangents must have the types of its arguments, and where a product or reshape is ambiguous.
Under Auto axes, and without a mesh, all functions here do nothing.
"""

from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from resjax.base.typing import Array


def cotangent(d: Array, x: Array) -> Array:
  """Returns a cotangent d [...] in the type of x [...]: its dtype, and how it lies.

  Where devices see other parts of d but one x (Manual axes), their cotangents are added.
  """
  parts = _varying(d) - _varying(x)
  if parts:
    d = lax.psum(d, tuple(sorted(parts)))
  return laid_out(d.astype(x.dtype), jax.typeof(x).sharding.spec)


def laid_out(x: Array, spec: PartitionSpec) -> Array:
  """Returns x split over Explicit mesh axes as `spec` says."""
  if not _has_explicit_axes():
    return x
  wanted = NamedSharding(jax.sharding.get_abstract_mesh(), spec)
  return x if jax.typeof(x).sharding == wanted else jax.sharding.reshard(x, wanted)


def typed_like(x: Array, like: Array | jax.ShapeDtypeStruct) -> Array:
  """Returns new values x [..., axes of `like`] that lie, and vary over devices, as `like` does."""
  parts = _varying(like) - _varying(x)
  if parts:
    x = lax.pcast(x, tuple(sorted(parts)), to="varying")
  if not _has_explicit_axes():
    return x
  kind = jax.typeof(like)
  return laid_out(x, PartitionSpec(*[None] * (x.ndim - len(kind.shape)), *kind.sharding.spec))


def whole() -> PartitionSpec | None:
  """Returns the `out_sharding` of a product that all devices share."""
  return PartitionSpec() if _has_explicit_axes() else None


def reshape_front(x: Array, count: int, *sizes: int) -> Array:
  """Returns x, the first `count` axes of which get new sizes; those behind stay as they are."""
  behind = jax.typeof(x).sharding.spec[count:]
  out = PartitionSpec(*[None] * len(sizes), *behind) if _has_explicit_axes() else None
  return lax.reshape(x, (*sizes, *x.shape[count:]), out_sharding=out)


def take_rows(table: Array, index: Array) -> Array:
  """Returns the rows [..., D] of a table [V, D] that an index names; they lie as the index does."""
  out = PartitionSpec(*jax.typeof(index).sharding.spec, None) if _has_explicit_axes() else None
  return table.at[index].get(mode="fill", out_sharding=out)


def _has_explicit_axes() -> bool:
  return bool(jax.sharding.get_abstract_mesh().explicit_axes)


def _varying(x: Array | jax.ShapeDtypeStruct) -> frozenset[str]:
  """Returns the Manual axes along which devices see other values of x."""
  # A shape is asked itself: where some axes alone are Manual, JAX knows no type of it.
  kind: Any = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)
  if hasattr(kind, "manual_axis_type"):
    axes = kind.manual_axis_type
    return frozenset() if axes is None else frozenset(axes.varying)
  return frozenset(kind.vma or ())
