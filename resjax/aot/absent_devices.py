"""TPU slices as devices to compile for, on a machine that has no TPU."""

import dataclasses
import importlib.util
import os
from typing import Any

import jax
from jax.experimental import topologies

from resjax.hardware import slices
from resjax.hardware.slices import TpuSlice

# Without these libtpu asks the machine, over the network, which TPU it has.
ENVIRONMENT = {
  "JAX_PLATFORMS": "cpu",
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-16",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class AbsentSlices:
  """One slice, or several equal ones that the data centre's network (DCN) joins.

  Attributes:
    tpu: what each slice is.
    num_slices: the number of slices.
    devices: the devices of all slices.
  """

  tpu: TpuSlice
  num_slices: int
  devices: tuple[jax.Device, ...]


def describe(name: str, num_slices: int = 1) -> AbsentSlices:
  """Returns the devices of slices that need not be there; JAX itself then runs on the CPU.

  Args:
    name: of a slice, see `slices.resolve`.
    num_slices: how many such slices there are.

  Raises:
    ValueError: there is no such slice, or libtpu is not installed.
  """
  tpu = slices.resolve(name)
  if importlib.util.find_spec("libtpu") is None:
    raise ValueError(
      f"--topology={name} needs libtpu, TPU or not; install the extra: pip install -e '.[tpu]'"
    )
  for key, value in ENVIRONMENT.items():
    os.environ.setdefault(key, value)
  jax.config.update("jax_platforms", "cpu")
  options: dict[str, Any] = {}
  if num_slices > 1:
    options["num_slices"] = num_slices
  if tpu.chips == 1:  # libtpu's own choice is 2x2
    options["chips_per_host_bounds"] = (1, 1, 1)
  if tpu.generation.name == "v4":  # otherwise each of a chip's two TensorCores is a device
    options["chip_config_name"] = "megacore"
  try:
    devices = topologies.get_topology_desc(tpu.name, platform="tpu", **options).devices
  except jax.errors.JaxRuntimeError as error:
    raise ValueError(f"--topology={name}: libtpu does not know this slice: {error}") from None
  return AbsentSlices(tpu, num_slices, tuple(devices))
