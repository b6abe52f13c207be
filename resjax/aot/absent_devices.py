"""TPU slices and NVIDIA GPUs as devices to compile for, on a machine that has none of them."""

import dataclasses
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from resjax.base.hardware import GPU_DRIVER_BYTES, GpuNodes, GpuTarget, TpuSlice, gpu_nodes, slices

# Without these libtpu asks the machine, over the network, which TPU it has.
ENVIRONMENT = {
  "JAX_PLATFORMS": "cpu",
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-16",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}

# Kernels use instructions of their own generation, such as asynchronous copies of Hopper.
_EXTENSION = "feature_extension: ACCELERATED_FEATURES"


@dataclasses.dataclass(frozen=True)
class AbsentSlices:
  """One slice, or several equal ones that the data centre's network (DCN) joins; or some GPUs.

  Attributes:
    part: what each slice is, or which GPUs there are.
    num_slices: the number of slices; 1 for GPUs.
    devices: the devices of all slices.
  """

  part: TpuSlice | GpuNodes
  num_slices: int
  devices: tuple[jax.Device, ...]


def describe(name: str, num_slices: int = 1) -> AbsentSlices:
  """Returns the devices of slices that need not be there; JAX itself then runs on the CPU.

  Args:
    name: of a slice, see `slices.resolve`, or of GPUs, see `gpu_nodes.resolve`.
    num_slices: how many such slices there are.

  Raises:
    ValueError: there is no such slice, or what compiles for it is not installed.
  """
  if gpu_nodes.is_gpu(name):
    if num_slices > 1:
      raise ValueError(f"--num_slices joins TPU slices; {name} has its nodes in its own number")
    return _describe_gpus(gpu_nodes.resolve(name))
  tpu = slices.resolve(name)
  if missing := missing_for(name):
    raise ValueError(f"--topology={name} needs {missing}")
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


def missing_for(name: str) -> str | None:
  """Returns which packages are missing to compile for absent devices, with their extra; or None."""
  if gpu_nodes.is_gpu(name):
    missing = missing_for_gpus()
    kind, extra = "GPU", "cuda_aot"
  else:
    missing = None if importlib.util.find_spec("libtpu") else "libtpu"
    kind, extra = "TPU", "tpu"
  return f"{missing}, {kind} or not: pip install 'resjax[{extra}]'" if missing else None


def missing_for_gpus() -> str | None:
  """Returns which packages are missing to compile for absent GPUs, or None."""
  missing = []
  if importlib.util.find_spec("jax_cuda13_plugin") is None:
    missing.append("JAX's plugin for CUDA")
  nvidia = importlib.util.find_spec("nvidia")  # a namespace that several packages share
  folders = (nvidia and nvidia.submodule_search_locations) or ()
  packaged = any(path for folder in folders for path in Path(folder).glob("*/bin/ptxas"))
  if not packaged and shutil.which("ptxas") is None:
    missing.append("ptxas")
  return " and ".join(missing) or None


def _describe_gpus(gpus: GpuNodes) -> AbsentSlices:
  if missing := missing_for(gpus.name):
    raise ValueError(f"--topology={gpus.name} needs {missing}")
  os.environ.setdefault("JAX_PLATFORMS", "cpu")
  jax.config.update("jax_platforms", "cpu")
  devices = topologies.get_topology_desc(
    platform="cuda",
    target_config=_target_config(gpus.chip),
    topology=f"1x{gpus.nodes}x{gpus.node_devices}",
  ).devices
  return AbsentSlices(gpus, 1, tuple(devices))


def _target_config(gpu: GpuTarget) -> str:
  """Returns the description of a GPU as XLA's `GpuTargetConfigProto` in text form.

  What is not a field of `gpu` is the same on all GPUs from Hopper on.
  """
  major, minor = gpu.capability
  return f"""
    gpu_device_info {{
      threads_per_block_limit: 1024
      threads_per_warp: 32
      shared_memory_per_block: 49152
      shared_memory_per_core: {gpu.program_bytes + GPU_DRIVER_BYTES}
      shared_memory_per_block_optin: {gpu.program_bytes}
      threads_per_core_limit: 2048
      core_count: {gpu.multiprocessors}
      fpus_per_core: 128
      block_dim_limit_x: 2147483647
      block_dim_limit_y: 65535
      block_dim_limit_z: 65535
      thread_dim_limit_x: 1024
      thread_dim_limit_y: 1024
      thread_dim_limit_z: 64
      registers_per_core_limit: 65536
      registers_per_block_limit: 65536
      memory_bandwidth: {gpu.bandwidth}
      l2_cache_size: {gpu.l2}
      clock_rate_ghz: {gpu.clock / 1e9}
      device_memory_size: {gpu.memory_bytes}
      cuda_compute_capability {{ major: {major} minor: {minor} {_EXTENSION} }}
      device_vendor: "NVIDIA Corporation"
      platform_version: "Compute Capability {major}.{minor}"
      device_address_bits: 64
      pcie_bandwidth: 34359738368
      name: "{gpu.device_kind}"
      driver_version: "13.0.0"
      runtime_version: "13.0.0"
      compile_time_toolkit_version: "13.0.0"
      dnn_version: "9.10.0"
    }}
    platform_name: "CUDA"
    dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
    device_description_str: "{gpu.device_kind}"
  """
