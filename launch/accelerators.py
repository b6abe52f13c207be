"""TPU slices by name: how many chips and hosts, and what Cloud TPU and GKE call them."""

import dataclasses
import math
import re

_SQUARES = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_CUBES = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16"


@dataclasses.dataclass(frozen=True)
class _Generation:
  """One kind of TPU.

  Attributes:
    type: first part of its accelerator types.
    gke: the value of the node label cloud.google.com/gke-tpu-accelerator.
    runtime: software version of its Cloud TPU VMs; empty: there are none, only GKE has it.
    counts: what the number in an accelerator type counts, per chip: 1 chips, 2 cores.
    shapes: the shape that each number of chips has by default.
    largest_vm: chips of the largest slice that is one Cloud TPU VM.
  """

  type: str
  gke: str
  runtime: str
  counts: int
  shapes: str
  largest_vm: int


# https://cloud.google.com/tpu/docs: supported configurations, TPU software versions.
_GENERATIONS = {
  "v4": _Generation("v4", "tpu-v4-podslice", "tpu-ubuntu2204-base", 2, _CUBES, 4),
  "v5e": _Generation("v5litepod", "tpu-v5-lite-podslice", "v2-alpha-tpuv5-lite", 1, _SQUARES, 8),
  "v5p": _Generation("v5p", "tpu-v5p-slice", "v2-alpha-tpuv5", 2, _CUBES, 4),
  "v6e": _Generation("v6e", "tpu-v6e-slice", "v2-alpha-tpuv6e", 1, _SQUARES, 8),
  "tpu7x": _Generation("tpu7x", "tpu7x", "", 2, _CUBES, 4),
}
CHIPS_PER_HOST = 4


@dataclasses.dataclass(frozen=True)
class TpuSlice:
  """One slice.

  Attributes:
    accelerator_type: its name in Cloud TPU, as `v5litepod-16`.
    shape: chips along each axis, as `4x4`.
    chips: their number.
    vms: Cloud TPU VMs that it consists of.
    nodes: GKE nodes that it consists of.
    runtime: software version of its VMs; empty: only GKE has it.
    gke_accelerator: its name in GKE.
  """

  accelerator_type: str
  shape: str
  chips: int
  vms: int
  nodes: int
  runtime: str
  gke_accelerator: str


def tpu_slice(topology: str) -> TpuSlice:
  """Returns the slice called `v5litepod-16` (accelerator type) or `v5e:4x4` (as in launch.aot).

  Raises:
    ValueError: there is none.
  """
  found = re.fullmatch(r"(\w+?)(?:-(\d+)|:(\d+(?:x\d+)+))", topology)
  types = {generation.type: name for name, generation in _GENERATIONS.items()}
  name = types.get(found[1], found[1]) if found else ""
  if name not in _GENERATIONS:
    raise ValueError(
      f"--topology={topology} is not a TPU slice; give one like v5litepod-16 or v5e:4x4, of "
      f"{', '.join(_GENERATIONS)}"
    )
  generation = _GENERATIONS[name]
  by_type = {
    f"{generation.type}-{_chips(shape) * generation.counts}": shape
    for shape in generation.shapes.split()
  }
  shape = by_type.get(f"{generation.type}-{found[2]}") if found[2] else found[3]
  if shape not in by_type.values():
    raise ValueError(f"--topology={topology}: {name} has {', '.join(by_type)}")
  return _build(generation, shape)


def _build(generation: _Generation, shape: str) -> TpuSlice:
  chips = _chips(shape)
  hosts = -(-chips // CHIPS_PER_HOST)
  return TpuSlice(
    accelerator_type=f"{generation.type}-{chips * generation.counts}",
    shape=shape,
    chips=chips,
    vms=1 if chips <= generation.largest_vm else hosts,
    nodes=hosts,
    runtime=generation.runtime,
    gke_accelerator=generation.gke,
  )


def _chips(shape: str) -> int:
  return math.prod(int(length) for length in shape.split("x"))
