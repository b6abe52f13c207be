"""Where the arrays of a run lie: a mesh, and rules from logical axes to its axes."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
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

  def put(self, rows: Mapping[str, np.ndarray]) -> Mapping[str, Array]:
    """Puts the arrays [B, T] of a batch onto the mesh."""
    return jax.device_put(rows, self.sharding("batch", "tokens"))

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
