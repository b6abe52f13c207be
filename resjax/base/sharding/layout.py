"""Where the arrays of a run lie: on a mesh, by rules from logical axes to its axes."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from resjax.base.sharding.mesh import MeshConfig, make_mesh, num_slices
from resjax.base.sharding.rules import LOGICAL_AXES, WHOLE, Rules, ShardingConfig
from resjax.base.typing import Array

# Moments of fewer elements on a device, such as those of norms, are not split further: that would
# save nothing, and their gradients would be exchanged layer by layer.
SMALL_MOMENTS = 2**18
# The mesh axis along which there are copies of the model; TPU slices are joined along it.
COPIES = "data"
# JAX's own form of no mesh: it has no axis and no device, and is `empty`.
NO_MESH = Mesh(np.empty((), dtype=object), ())


@dataclasses.dataclass(frozen=True)
class Layout:
  """A mesh, and the rules that say which of its axes split which logical axis.

  Without a mesh (`Layout()`) nothing is split, and JAX places arrays. It is the layout of a model
  inside a program that places arrays itself.

  Attributes:
    mesh: the devices by mesh axis; `NO_MESH` without any.
    rules: which mesh axes split which logical axis.
  """

  mesh: Mesh = NO_MESH
  rules: Rules = WHOLE

  @property
  def has_mesh(self) -> bool:
    """Whether there is a mesh, if only one of a single device."""
    return not self.mesh.empty

  @property
  def spans_devices(self) -> bool:
    """Whether there is a mesh of several devices."""
    return self.mesh.size > 1

  @property
  def device(self) -> jax.Device:
    """One of the devices that the program will run on; they are all of one kind."""
    return self.mesh.devices.flat[0] if self.has_mesh else jax.devices()[0]

  @property
  def platform(self) -> str:
    """`tpu`, `gpu` or `cpu`: where the program will run, not where it is compiled."""
    return self.device.platform

  def axes(self, axis: str) -> tuple[str, ...]:
    """Returns the mesh axes that split a logical axis."""
    return getattr(self.rules, axis)

  def spec(self, *axes: str | None) -> PartitionSpec:
    """Returns the partition of an array with these logical axes."""
    return PartitionSpec(*[(self.axes(axis) or None) if axis else None for axis in axes])

  def sharding(self, *axes: str | None) -> NamedSharding | None:
    """Returns the sharding of an array with these logical axes; None without a mesh."""
    return NamedSharding(self.mesh, self.spec(*axes)) if self.has_mesh else None

  def by_columns(self) -> Iterator["Layout"]:
    """Yields layouts of activations [B, T, D] from D split as that of parameters to D whole.

    Each has one mesh axis less along D, which splits B or T again if it does by the rules: the
    compiler exchanges along one axis at a time, and would gather everything for several.
    """
    for count in range(len(self.rules.embed_param), 0, -1):
      split = self.rules.embed_param[:count]
      rest = {
        axis: tuple(name for name in self.axes(axis) if name not in split)
        for axis in ("batch", "tokens")
      }
      yield Layout(self.mesh, dataclasses.replace(self.rules, embed=split, **rest))

  def moments(self, parameter: jax.ShapeDtypeStruct) -> NamedSharding | None:
    """Returns how the moments of a parameter are split, and the update that comes of them.

    The mesh axes of `Rules.moments` that split the parameter nowhere split, of its axes that they
    divide, the one of which a device has most. If they divide none, or a device has less than
    `SMALL_MOMENTS` of them, the moments lie as the parameter does.

    Args:
      parameter: its shape, and how it is split.
    """
    sharding = parameter.sharding
    if not isinstance(sharding, NamedSharding):
      return sharding
    spec: list[Any] = [*sharding.spec, *[None] * (len(parameter.shape) - len(sharding.spec))]
    split = [(axes,) if isinstance(axes, str) else tuple(axes or ()) for axes in spec]
    used = {name for axes in split for name in axes}
    more = tuple(name for name in self.rules.moments if name not in used)
    shards = math.prod(self.mesh.shape[name] for name in more)
    parts = sharding.shard_shape(parameter.shape)
    fitting = [axis for axis, size in enumerate(parts) if size % shards == 0]
    if shards == 1 or not fitting or math.prod(parts) < SMALL_MOMENTS:
      return sharding
    chosen = max(fitting, key=lambda axis: parts[axis])
    split[chosen] += more
    return NamedSharding(self.mesh, PartitionSpec(*[axes or None for axes in split]))

  @property
  def copies(self) -> int:
    """How many copies of the model there are along `data`, each with neighbouring rows of a batch.

    It is 1 where `data` splits anything else, or not rows first of all.
    """
    others = [self.axes(axis) for axis in LOGICAL_AXES if axis != "batch"]
    alone = self.rules.batch[:1] == (COPIES,) and not any(COPIES in axes for axes in others)
    return self.mesh.shape[COPIES] if alone and self.has_mesh else 1

  @property
  def copies_are_apart(self) -> bool:
    """Whether the network between copies may be slow: between TPU slices, and processes on CPUs."""
    return self.platform == "cpu" or num_slices([*self.mesh.devices.flat]) > 1

  @property
  def of_one_copy(self) -> "Layout":
    """The layout of what one of the `copies` computes, for `jax.vmap` over their axis `COPIES`."""
    return Layout(self.mesh, dataclasses.replace(self.rules, batch=self.rules.batch[1:]))

  @property
  def everywhere(self) -> NamedSharding | None:
    """The sharding of results that every process reads; None without a mesh."""
    return self.sharding()

  def constrain(self, x: Array, *axes: str | None) -> Array:
    """Asks the compiler to lay out `x` by its logical axes.

    An axis whose size does not divide over its devices stays whole, such as the single token of a
    step of decoding. The sizes of training are checked before, by `resjax.train.runs.divisibility`.

    Args:
      x: an activation.
      axes: the logical axis of each of its axes; None: it stays whole.
    """
    if not self.spans_devices:
      return x
    split = [
      axis if axis and size % self.num_shards(axis) == 0 else None
      for axis, size in zip(axes, x.shape, strict=True)
    ]
    return jax.lax.with_sharding_constraint(x, self.sharding(*split))

  def rows(self, batch_size: int) -> np.ndarray:
    """Returns the numbers of the rows of a batch that the devices of this process hold, ascending.

    Devices of several processes may hold parts of the same row, or copies of it.
    """
    sharding = self.sharding("batch", None)
    if sharding is None:
      return np.arange(batch_size)
    places = sharding.addressable_devices_indices_map((batch_size, 1))
    parts = [np.arange(batch_size)[place[0]] for place in places.values() if place is not None]
    return np.unique(np.concatenate(parts))

  def put(self, rows: Mapping[str, np.ndarray], batch_size: int) -> Mapping[str, Array]:
    """Returns a batch on the devices of the mesh.

    Args:
      rows: arrays [b, T] or [b] of the rows that `Layout.rows` gives for this process.
      batch_size: B of the whole batch, [B, T] or [B].
    """
    own = self.rows(batch_size)

    def place(array: np.ndarray) -> Array:
      sharding = self.sharding(*("batch", "tokens")[: array.ndim])
      if sharding is None:
        return jnp.asarray(array)

      def part(index: Any) -> np.ndarray:  # a slice for each axis
        wanted = np.arange(batch_size)[index[0]]
        start = np.searchsorted(own, wanted[0])
        return array[(slice(start, start + len(wanted)), *index[1:])]

      return jax.make_array_from_callback((batch_size, *array.shape[1:]), sharding, part)

    return {name: place(array) for name, array in rows.items()}

  def split(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, Array]:
    """Returns a batch [B, T], of which every process holds all rows, on the devices of the mesh."""
    batch_size = next(iter(batch.values())).shape[0]
    rows = self.rows(batch_size)
    return self.put({name: array[rows] for name, array in batch.items()}, batch_size)

  def copy(self, array: np.ndarray) -> Array:
    """Returns an array, the same one in all processes, with a copy on every device of the mesh."""
    sharding = self.sharding()
    if sharding is None:
      return jnp.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

  def num_shards(self, axis: str) -> int:
    """Returns the number of parts that a logical axis is split into."""
    return math.prod(self.mesh.shape[mesh_axis] for mesh_axis in self.axes(axis))


def make_layout(
  mesh: MeshConfig, sharding: ShardingConfig, devices: Sequence[jax.Device] | None = None
) -> Layout:
  """Returns the layout of a run.

  Args:
    mesh: the number of devices along each mesh axis.
    sharding: the rules.
    devices: the devices; default: all devices of all processes.

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
