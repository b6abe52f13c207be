"""Mesh, logical axis rules, and where arrays lie: the one table of the sharding of a run."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from resjax.typing import Array

MESH_AXES = ("data", "fsdp", "tensor", "sequence")

# Logical axis -> mesh axes that split it.
RULES = {
  "batch": ("data", "fsdp"),
  "tokens": ("sequence",),
  "embed": (),  # D of activations
  "layers": (),
  "embed_param": ("fsdp",),  # D of parameters
  "vocab": ("tensor",),
  "heads": ("tensor",),  # H·C and K·C
  "mlp": ("tensor",),
}


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Number of devices per mesh axis; one of them may be -1: all that remain."""

  data: int = -1
  fsdp: int = 1
  tensor: int = 1
  sequence: int = 1


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """Returns a mesh with the axes `MESH_AXES`, all in Auto mode.

  Args:
    config: devices per axis.
    devices: default all devices of all processes.

  Raises:
    ValueError: the axes do not multiply to the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  asked = dict(zip(MESH_AXES, dataclasses.astuple(config), strict=True))
  open_axes = [axis for axis, n in asked.items() if n == -1]
  known = math.prod(n for n in asked.values() if n != -1)
  sizes = dict(asked)
  if len(open_axes) == 1 and known > 0:
    sizes[open_axes[0]] = len(devices) // known
  if min(sizes.values()) < 1 or math.prod(sizes.values()) != len(devices):
    raise ValueError(
      f"config.mesh={asked} does not fit {len(devices)} devices: the axes must multiply to that "
      "number; one axis may be -1 (all that remain)"
    )
  types = (AxisType.Auto,) * len(MESH_AXES)
  slices = len({getattr(device, "slice_index", 0) for device in devices})
  if slices == 1:
    return jax.make_mesh(tuple(sizes.values()), MESH_AXES, types, devices=devices)
  if sizes["data"] % slices:
    raise ValueError(
      f"config.mesh.data={sizes['data']} is not divisible by the {slices} slices, which it joins"
    )
  within = sizes | {"data": sizes["data"] // slices}
  # Split, as jax.make_mesh does for one slice: 64 devices of 16 × 16 are no whole axes of it.
  grid = mesh_utils.create_hybrid_device_mesh(
    tuple(within.values()), (slices, 1, 1, 1), devices, allow_split_physical_axes=True
  )
  return Mesh(grid, MESH_AXES, axis_types=types)


@dataclasses.dataclass(frozen=True)
class Layout:
  """A mesh and the rules that map logical axes to it; without a mesh it constrains nothing.

  Attributes:
    mesh: or None, for a model on one device.
    rules: (logical axis, mesh axes) pairs.
  """

  mesh: Mesh | None = None
  rules: tuple[tuple[str, tuple[str, ...]], ...] = tuple(RULES.items())

  @property
  def platform(self) -> str:
    """`tpu`, `gpu` or `cpu`: where the program will run, not where it is compiled."""
    if self.mesh is None:
      return jax.default_backend()
    return self.mesh.devices.flat[0].platform

  def spec(self, *axes: str | None) -> PartitionSpec:
    """Returns the partition of an array with these logical axes."""
    rules = dict(self.rules)
    return PartitionSpec(*[(rules[axis] or None) if axis else None for axis in axes])

  def sharding(self, *axes: str | None) -> NamedSharding:
    """Returns the sharding of an array with these logical axes; needs a mesh."""
    return NamedSharding(self.mesh, self.spec(*axes))

  def constrain(self, x: Array, *axes: str | None) -> Array:
    """Asks the compiler to lay out `x` by its logical axes."""
    if self.mesh is None or self.mesh.size == 1:
      return x
    return jax.lax.with_sharding_constraint(x, self.sharding(*axes))

  def put(self, rows: Mapping[str, np.ndarray]) -> Mapping[str, Array]:
    """Puts the arrays [B, T] of a batch onto the mesh."""
    return jax.device_put(rows, self.sharding("batch", "tokens"))

  def num_shards(self, axis: str) -> int:
    """Returns into how many parts a logical axis is split."""
    if self.mesh is None:
      return 1
    return math.prod(self.mesh.shape[mesh_axis] for mesh_axis in dict(self.rules)[axis])

  def parameter_sharding(self, path: str, shape: tuple[int, ...], axes: tuple) -> NamedSharding:
    """Returns the sharding of a parameter; a stacked one has an axis `layers` before its own.

    Raises:
      ValueError: an axis is not divisible by the devices that split it.
    """
    axes = ("layers",) * (len(shape) - len(axes)) + tuple(axes)
    for axis, size in zip(axes, shape, strict=True):
      if axis and size % self.num_shards(axis):
        raise ValueError(
          f"{path}: axis {axis!r} of size {size} is not divisible by {self.num_shards(axis)}, the "
          f"devices along {', '.join(dict(self.rules)[axis])}; change config.mesh or that size"
        )
    return self.sharding(*axes)
