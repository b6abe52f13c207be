"""TPU slices: the one table of generations and shapes, and the one way to resolve a slice's name.

A slice has three kinds of names: an accelerator type of Cloud TPU (`v5litepod-16`), the same with
the generation's short name (`v5e-16`), and a generation with a shape (`v5e:4x4`). The number in an
accelerator type counts chips on v5e and v6e, and TensorCores, two on a chip, on the others.
"""

import dataclasses
import functools
import itertools
import math
import re

from resjax.base.hardware.chips import TPU_CHIPS, TpuChip

HOST_CHIPS = 4  # a host drives 2x2 chips, or the only chip of a slice of one


@dataclasses.dataclass(frozen=True)
class Generation:
  """One generation of TPUs, as Cloud TPU and GKE offer it.

  Attributes:
    name: its short name, which is also libtpu's.
    accelerator: the first part of its accelerator types.
    counts_cores: whether the number in an accelerator type counts TensorCores instead of chips.
    small_shapes: the shapes of slices that are not made of whole cubes of 4x4x4 chips.
    largest: chips of the largest slice made of such cubes; 0 if there are none.
    gke_accelerator: the value of the node label cloud.google.com/gke-tpu-accelerator.
    runtime: software version of its Cloud TPU VMs; empty if only GKE offers it.
    largest_vm: chips of the largest slice that is a single Cloud TPU VM.
  """

  name: str
  accelerator: str
  counts_cores: bool
  small_shapes: tuple[str, ...]
  largest: int
  gke_accelerator: str
  runtime: str
  largest_vm: int

  @property
  def chip(self) -> TpuChip:
    """The facts about one of its chips."""
    return TPU_CHIPS[self.name]

  @functools.cached_property
  def shapes(self) -> tuple[str, ...]:
    """All shapes from the smallest slice to the largest, of equal ones the most compact first."""
    return (*self.small_shapes, *_cubes(self.largest))

  @functools.cached_property
  def shape_of_type(self) -> dict[str, str]:
    """Accelerator type -> the shape that Cloud TPU gives it, the most compact one."""
    return {self.type_of_shape(shape): shape for shape in reversed(self.shapes)}

  def type_of_shape(self, shape: str) -> str:
    """Returns the accelerator type of a shape, which other shapes of as many chips share."""
    parts = self.chip.cores if self.counts_cores else 1
    return f"{self.accelerator}-{parts * count_chips(shape)}"

  @property
  def host(self) -> str:
    """The name of the slice that is one whole host, such as v5e:2x2."""
    shape = next(shape for shape in self.shapes if count_chips(shape) == HOST_CHIPS)
    return f"{self.name}:{shape}"


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_PARTS = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
# Sources: the page of each version at https://cloud.google.com/tpu/docs, "Plan TPUs in GKE"
# (https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus) and "TPU software versions".
GENERATIONS = {
  generation.name: generation
  for generation in (
    Generation("v4", "v4", True, _PARTS, 4096, "tpu-v4-podslice", "tpu-ubuntu2204-base", 4),
    Generation(
      "v5e", "v5litepod", False, _FLAT, 0, "tpu-v5-lite-podslice", "v2-alpha-tpuv5-lite", 8
    ),
    Generation("v5p", "v5p", True, _PARTS, 6144, "tpu-v5p-slice", "v2-alpha-tpuv5", 4),
    Generation("v6e", "v6e", False, _FLAT, 0, "tpu-v6e-slice", "v2-alpha-tpuv6e", 8),
    Generation("tpu7x", "tpu7x", True, ("1x1x1", *_PARTS), 9216, "tpu7x", "", 4),
  )
}


@dataclasses.dataclass(frozen=True)
class TpuSlice:
  """One slice: a generation and a shape, from which everything else about it follows."""

  generation: Generation
  shape: str

  @property
  def chip(self) -> TpuChip:
    """The facts about one of its chips."""
    return self.generation.chip

  @property
  def name(self) -> str:
    """The name by which libtpu knows it, such as v5e:4x4."""
    return f"{self.generation.name}:{self.shape}"

  @property
  def accelerator_type(self) -> str:
    """The accelerator type, such as v5litepod-16; see `is_default_shape`."""
    return self.generation.type_of_shape(self.shape)

  @property
  def is_default_shape(self) -> bool:
    """Whether the accelerator type alone gives this shape."""
    return self.generation.shape_of_type[self.accelerator_type] == self.shape

  @property
  def chips(self) -> int:
    """Number of chips."""
    return count_chips(self.shape)

  @property
  def devices(self) -> int:
    """Number of JAX devices."""
    return self.chips * self.generation.chip.devices

  @property
  def hosts(self) -> int:
    """Number of hosts of up to 2x2 chips: the nodes in GKE, and the processes of a program."""
    return -(-self.chips // HOST_CHIPS)

  @property
  def host_chips(self) -> int:
    """Number of chips of one such host."""
    return min(self.chips, HOST_CHIPS)

  @property
  def vms(self) -> int:
    """Number of Cloud TPU VMs; eight chips of v5e or v6e are a single one."""
    return 1 if self.chips <= self.generation.largest_vm else self.hosts


def resolve(name: str) -> TpuSlice:
  """Returns the slice that `v5litepod-16`, `v5e-16` or `v5e:4x4` names.

  Raises:
    ValueError: there is none; the message lists those that there are.
  """
  found = re.fullmatch(r"(\w+?)(?:-(\d+)|:(\d+(?:x\d+)+))", name)
  prefix, number, shape = found.groups() if found else (name, None, None)
  for generation in GENERATIONS.values():
    if prefix in (generation.name, generation.accelerator):
      if number:
        shape = generation.shape_of_type.get(f"{generation.accelerator}-{number}")
      if shape in generation.shapes:
        return TpuSlice(generation, shape)
      raise ValueError(f"--topology={name} is not a TPU slice; {_allowed(generation)}")
  raise ValueError(
    f"--topology={name} is not a TPU slice; give an accelerator type such as v5litepod-16 or a "
    f"shape such as v5e:4x4, of {', '.join(GENERATIONS)}"
  )


def _allowed(generation: Generation) -> str:
  """Returns what slices a generation has, in words."""
  parts = [f"{generation.type_of_shape(s)} ({s})" for s in generation.small_shapes]
  text = f"{generation.name} has {', '.join(parts)}"
  if generation.largest:
    text += (
      f", and any {generation.name}:AxBxC of multiples of 4, A <= B <= C, with at most "
      f"{generation.largest} chips; the number in {generation.accelerator}-8 counts TensorCores, "
      f"{generation.chip.cores} on a chip"
    )
  return text


def count_chips(shape: str) -> int:
  """Returns the number of chips of a shape such as 4x4."""
  return math.prod(int(length) for length in shape.split("x"))


def _cubes(most: int) -> tuple[str, ...]:
  """Returns the shapes AxBxC of multiples of 4, A ≤ B ≤ C, of at most this many chips."""
  lengths = range(4, most // 16 + 1, 4)
  found = [
    sizes
    for a, b in itertools.combinations_with_replacement(lengths, 2)
    if a * b * b <= most
    for sizes in ((a, b, c) for c in range(b, most // (a * b) + 1, 4))
  ]
  found.sort(key=lambda sizes: (math.prod(sizes), sum(sizes)))
  return tuple("x".join(map(str, sizes)) for sizes in found)
