"""Mesh, logical axis rules, and where arrays lie: the one table of the sharding of a run."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
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
  return jax.make_mesh(
    tuple(sizes.values()), MESH_AXES, (AxisType.Auto,) * len(MESH_AXES), devices=devices
  )


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

  def rows(self, batch_size: int) -> np.ndarray:
    """Returns which rows of a batch this process reads, ascending: those that its devices hold.

    Devices of several processes may hold parts of the same row, or copies of it.
    """
    places = self.sharding("batch", None).addressable_devices_indices_map((batch_size, 1))
    parts = [np.arange(batch_size)[rows] for rows, _ in places.values()]
    return np.unique(np.concatenate(parts))

  def put(self, rows: Mapping[str, np.ndarray], batch_size: int) -> Mapping[str, Array]:
    """Puts a batch onto the mesh.

    Args:
      rows: arrays [b, T], of the rows that `rows` gives.
      batch_size: B of the whole batch [B, T].
    """
    own, sharding = self.rows(batch_size), self.sharding("batch", "tokens")

    def place(array: np.ndarray) -> Array:
      def part(index):
        wanted = np.arange(batch_size)[index[0]]
        start = np.searchsorted(own, wanted[0])
        return array[start : start + len(wanted), index[1]]

      return jax.make_array_from_callback((batch_size, array.shape[1]), sharding, part)

    return {name: place(array) for name, array in rows.items()}

  def copy(self, array: np.ndarray) -> Array:
    """Puts a copy of an array, the same in all processes, onto every device of the mesh."""
    return jax.make_array_from_callback(array.shape, self.sharding(), lambda index: array[index])

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
