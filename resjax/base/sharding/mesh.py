"""Meshes: devices along the axes data, fsdp, expert, tensor and sequence."""

import dataclasses
import math
from collections.abc import Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from resjax.base.ranges import check_types

MESH_AXES = ("data", "fsdp", "expert", "tensor", "sequence")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """The number of devices along each mesh axis; one of them may be -1: all that remain.

  Attributes:
    data: copies of the model, each with its own rows.
    fsdp: devices that have rows of their own, and share one copy of the parameters.
    expert: devices that have rows of their own, and share the experts of a mixture.
    tensor: devices that share the heads and the inner width of MLPs.
    sequence: devices that share the tokens of a row.
  """

  data: int = -1
  fsdp: int = 1
  expert: int = 1
  tensor: int = 1
  sequence: int = 1

  def __post_init__(self) -> None:
    """Raises ValueError if a number of devices is no whole number."""
    check_types(self, "config.mesh")


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """Returns a mesh with the axes `MESH_AXES`, all in Auto mode.

  Devices along the last axes are the nearest neighbours. TPU slices, which a slower network joins,
  lie along `data`, where the devices of one slice are neighbours.

  Args:
    config: the number of devices along each axis.
    devices: the devices; default: all devices of all processes.

  Raises:
    ValueError: the axes do not multiply to the number of devices, or another axis than `data`
      would join slices.
  """
  devices = jax.devices() if devices is None else devices
  sizes = _sizes(config, len(devices))
  slices = num_slices(devices)
  types = (AxisType.Auto,) * len(MESH_AXES)
  if slices == 1:
    # Physical axes may be split: 16 devices along a mesh axis are no whole axes of a slice of
    # 4 × 8 × 8.
    grid = mesh_utils.create_device_mesh(
      tuple(sizes.values()), devices, allow_split_physical_axes=True
    )
    return Mesh(grid, MESH_AXES, axis_types=types)
  if sizes["data"] % slices:
    raise ValueError(
      f"config.mesh.data={sizes['data']} is not divisible by the {slices} slices of "
      f"{len(devices) // slices} devices each; the network between slices is for `data` alone, so "
      f"fsdp × expert × tensor × sequence = {len(devices) // sizes['data']} must divide a slice; "
      f"set config.mesh.data to a multiple of {slices}"
    )
  within = sizes | {"data": sizes["data"] // slices}
  grid = mesh_utils.create_hybrid_device_mesh(
    tuple(within.values()),
    (slices, *[1] * (len(MESH_AXES) - 1)),
    devices,
    allow_split_physical_axes=True,
  )
  return Mesh(grid, MESH_AXES, axis_types=types)


def num_slices(devices: Sequence[jax.Device]) -> int:
  """Returns the number of TPU slices of these devices; 1 on other platforms."""
  if devices[0].platform != "tpu":
    return 1
  # Absent devices of a single slice are described without this attribute.
  return len({getattr(device, "slice_index", 0) for device in devices})


def _sizes(config: MeshConfig, num_devices: int) -> dict[str, int]:
  """Returns the number of devices along each axis, where -1 is replaced by what remains."""
  asked = dict(zip(MESH_AXES, dataclasses.astuple(config), strict=True))
  open_axes = [axis for axis, n in asked.items() if n == -1]
  known = math.prod(n for n in asked.values() if n != -1)
  sizes = dict(asked)
  if len(open_axes) == 1 and known > 0:
    sizes[open_axes[0]] = num_devices // known
  if min(sizes.values()) < 1 or math.prod(sizes.values()) != num_devices:
    raise ValueError(
      f"config.mesh={asked} does not fit {num_devices} devices: the axes must multiply to that "
      "number; one axis may be -1 (all that remain)"
    )
  return sizes
