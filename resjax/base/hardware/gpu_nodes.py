"""Nodes of NVIDIA GPUs: the one way to resolve a name such as `h100-8`, a GPU and their number."""

import dataclasses
import re

from resjax.base.hardware.chips import GPU_TARGETS, GpuTarget

NODE_GPUS = 8  # of an HGX or DGX node, all of which are joined by NVLink


@dataclasses.dataclass(frozen=True)
class GpuNodes:
  """Some GPUs of one kind: a part of a node, or whole nodes.

  Attributes:
    gpu: key of `GPU_TARGETS`.
    devices: number of GPUs, each of which is a JAX device.
  """

  gpu: str
  devices: int

  @property
  def name(self) -> str:
    """The name by which it is asked for, such as h100-8."""
    return f"{self.gpu}-{self.devices}"

  @property
  def chip(self) -> GpuTarget:
    """The facts about one of its GPUs."""
    return GPU_TARGETS[self.gpu]

  @property
  def node_devices(self) -> int:
    """How many of the GPUs are in one node: all of them, if they are fewer than it has."""
    return min(self.devices, NODE_GPUS)

  @property
  def nodes(self) -> int:
    """How many nodes hold the GPUs; a part of a node counts as one."""
    return self.devices // self.node_devices


def is_gpu(name: str) -> bool:
  """Returns whether a name asks for GPUs, if perhaps for a number that there is not."""
  return name.split("-")[0] in GPU_TARGETS


def find(gpu: str, devices: int) -> GpuNodes | None:
  """Returns a description of GPUs; None if that kind or number cannot be compiled for."""
  whole = devices in (1, 2, 4) or devices % NODE_GPUS == 0
  return GpuNodes(gpu, devices) if gpu in GPU_TARGETS and whole else None


def resolve(name: str) -> GpuNodes:
  """Returns the GPUs that `h100-8` names.

  Raises:
    ValueError: there are none; the message says which there are.
  """
  parts = re.fullmatch(r"(\w+)-([1-9]\d*)", name)
  if parts and (found := find(parts[1], int(parts[2]))):
    return found
  raise ValueError(
    f"--topology={name} is not a number of GPUs; give KIND-N such as h100-8, KIND of "
    f"{', '.join(GPU_TARGETS)}, N one of 1, 2, 4 or a multiple of {NODE_GPUS}, the GPUs of a node"
  )
