"""TPU slices by the names that people use, as devices that need not be there.

Sources: the tables of configurations of Cloud TPU's pages on v5e, v5p, v6e and TPU7x
(https://cloud.google.com/tpu/docs/v5e and so on).
"""

import dataclasses
import importlib.util
import math
import os
import re

import jax
from jax.experimental import topologies

# What libtpu asks a machine without a TPU about.
ENVIRONMENT = {
  "JAX_PLATFORMS": "cpu",
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-16",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Generation:
  """One generation of TPUs.

  Attributes:
    counted: what the number in a name such as v5p-512 counts: `chips`, or `cores`, two on a chip.
    shapes: of the slices that have such a name.
    prefixes: of those names.
    hbm: GiB of one device; of a TPU7x chip, which is two devices, each has half.
    available: GiB of it that a program can have: what libtpu 0.0.42 says when it refuses one.
  """

  counted: str
  shapes: tuple[str, ...]
  prefixes: tuple[str, ...]
  hbm: float
  available: float


_FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = (
  "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16",
  "16x16x16", "16x16x24",
)  # fmt: skip
GENERATIONS = {
  "v5e": Generation("chips", _FLAT, ("v5e", "v5litepod"), 16, 15.75),
  "v5p": Generation("cores", _CUBES, ("v5p",), 96, 95.74),
  "v6e": Generation("chips", _FLAT, ("v6e",), 32, 31.25),
  "tpu7x": Generation("cores", (), (), 96, 94.75),
}


@dataclasses.dataclass(frozen=True)
class Topology:
  """A slice, or several equal ones.

  Attributes:
    name: as libtpu has it, such as v5e:16x16.
    generation: of its chips.
    num_slices: joined by the data centre's network (DCN).
    devices: of all slices.
  """

  name: str
  generation: Generation
  num_slices: int
  devices: tuple[jax.Device, ...]


def names() -> dict[str, str]:
  """Returns the short names of slices, each with libtpu's name for it."""
  found = {}
  for key, generation in GENERATIONS.items():
    for shape in generation.shapes:
      chips = math.prod(map(int, shape.split("x")))
      number = chips * {"chips": 1, "cores": 2}[generation.counted]
      found |= {f"{prefix}-{number}": f"{key}:{shape}" for prefix in generation.prefixes}
  return found


def resolve(name: str) -> str:
  """Returns libtpu's name of a slice: v5e:16x16 for itself, v5e-256 and v5litepod-256.

  Raises:
    ValueError: it is no name of a slice.
  """
  full = names().get(name, name)
  match = re.fullmatch(r"(\w+):\d+x\d+(x\d+)?", full)
  if match is None or match[1] not in GENERATIONS:
    raise ValueError(
      f"--topology={name} is not known; allowed: {', '.join(names())} (v5p counts TensorCores, two "
      f"on a chip, the others chips), or a shape such as v5e:16x16 of {', '.join(GENERATIONS)}"
    )
  return full


def describe(name: str, num_slices: int = 1) -> Topology:
  """Returns slices that need not be there; JAX itself then runs on the CPU.

  Args:
    name: see `resolve`.
    num_slices: how many of them.

  Raises:
    ValueError: there is no such slice, or libtpu is not installed.
  """
  full = resolve(name)
  if importlib.util.find_spec("libtpu") is None:
    raise ValueError(
      f"--topology={name} needs libtpu, TPU or not; install the extra: pip install -e '.[tpu]'"
    )
  for key, value in ENVIRONMENT.items():
    os.environ.setdefault(key, value)
  jax.config.update("jax_platforms", "cpu")
  several = {"num_slices": num_slices} if num_slices > 1 else {}
  try:
    devices = topologies.get_topology_desc(full, platform="tpu", **several).devices
  except jax.errors.JaxRuntimeError as error:
    raise ValueError(f"--topology={name}: {error}; a slice is made of hosts of 2x2 chips") from None
  return Topology(full, GENERATIONS[full.split(":")[0]], num_slices, tuple(devices))
