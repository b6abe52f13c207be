"""Where the arrays of a run lie: a mesh, and rules from logical axes to its axes."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from resjax.sharding.mesh import MeshConfig, make_mesh
from resjax.sharding.rules import Rules, ShardingConfig
from resjax.typing import Array


@dataclasses.dataclass(frozen=True)
class Layout:
  """A mesh and the rules that map logical axes to it; without a mesh it constrains nothing.

  Attributes:
    mesh: or None, for a model on one device.
    rules: what splits which axis; None without a mesh.
  """

  mesh: Mesh | None = None
  rules: Rules | None = None

  @property
  def platform(self) -> str:
    """`tpu`, `gpu` or `cpu`: where the program will run, not where it is compiled."""
    if self.mesh is None:
      return jax.default_backend()
    return self.mesh.devices.flat[0].platform

  def spec(self, *axes: str | None) -> PartitionSpec:
    """Returns the partition of an array with these logical axes."""
    return PartitionSpec(*[(self.rules.axes(axis) or None) if axis else None for axis in axes])

  def sharding(self, *axes: str | None) -> NamedSharding:
    """Returns the sharding of an array with these logical axes; needs a mesh."""
    return NamedSharding(self.mesh, self.spec(*axes))

  @property
  def everywhere(self) -> NamedSharding | None:
    """Where results go that every process reads; None without a mesh."""
    return None if self.mesh is None else self.sharding()

  def constrain(self, x: Array, *axes: str | None) -> Array:
    """Asks the compiler to lay out `x` by its logical axes.

    An axis that does not divide stays whole: the one token of a step of decoding. Sizes of training
    are checked before, see `resjax.train.divisibility`.
    """
    if self.mesh is None or self.mesh.size == 1:
      return x
    split = [
      axis if axis and size % self.num_shards(axis) == 0 else None
      for axis, size in zip(axes, x.shape, strict=True)
    ]
    return jax.lax.with_sharding_constraint(x, self.sharding(*split))

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

  def split(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, Array]:
    """Puts a batch onto the mesh of which every process holds all rows [B, T]."""
    if self.mesh is None:
      return {name: jnp.asarray(array) for name, array in batch.items()}
    batch_size = next(iter(batch.values())).shape[0]
    rows = self.rows(batch_size)
    return self.put({name: array[rows] for name, array in batch.items()}, batch_size)

  def copy(self, array: np.ndarray) -> Array:
    """Puts a copy of an array, the same in all processes, onto every device of the mesh."""
    return jax.make_array_from_callback(array.shape, self.sharding(), lambda index: array[index])

  def num_shards(self, axis: str) -> int:
    """Returns into how many parts a logical axis is split."""
    if self.mesh is None:
      return 1
    return math.prod(self.mesh.shape[mesh_axis] for mesh_axis in self.rules.axes(axis))


def make_layout(
  mesh: MeshConfig, sharding: ShardingConfig, devices: Sequence[jax.Device] | None = None
) -> Layout:
  """Returns the layout of a run.

  Args:
    mesh: devices per mesh axis.
    sharding: the rules.
    devices: default all devices of all processes.

  Raises:
    ValueError: the mesh does not fit the devices, or the rules leave some of them idle.
  """
  layout = Layout(make_mesh(mesh, devices), sharding.rules)
  for axis, size in layout.mesh.shape.items():
    if size > 1 and axis not in sharding.rules.used:
      raise ValueError(
        f"config.mesh.{axis}={size}, but config.sharding.name={sharding.name!r} splits nothing "
        f"over {axis}: {size} devices would compute the same; set config.mesh.{axis}=1, or a "
        "config.sharding.name whose rules do"
      )
  return layout
