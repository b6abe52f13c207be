"""Facts about single chips: arithmetic, memory and on-chip memory of TPUs and NVIDIA GPUs."""

import dataclasses

_KIB, _MIB = 2**10, 2**20


@dataclasses.dataclass(frozen=True)
class TpuChip:
  """One chip of a TPU generation.

  Attributes:
    device_kinds: the values of `jax.Device.device_kind` by which its devices are known.
    devices: number of JAX devices that one chip is: two on TPU7x, one elsewhere.
    cores: number of TensorCores; the cores of one device share the grid of a kernel.
    peak_flops: dense bfloat16 matrix FLOP/s of the chip.
    memory: HBM of the chip in GiB.
    available_memory: the GiB of one device that a program can have, as libtpu 0.0.42 reports them
      when it refuses a program.
    bandwidth: nominal bytes per second of the chip's HBM.
    clock: cycles per second; the values of v6e and TPU7x are assumed, not published.
    vmem: on-chip vector memory of one TensorCore in bytes.
  """

  device_kinds: tuple[str, ...]
  devices: int
  cores: int
  peak_flops: float
  memory: float
  available_memory: float
  bandwidth: float
  clock: float
  vmem: int

  @property
  def device_flops(self) -> float:
    """Peak FLOP/s of one JAX device."""
    return self.peak_flops / self.devices

  @property
  def device_memory(self) -> float:
    """HBM of one JAX device in GiB."""
    return self.memory / self.devices

  @property
  def device_cores(self) -> int:
    """Number of TensorCores of one JAX device."""
    return self.cores // self.devices

  @property
  def core_bandwidth(self) -> float:
    """Bytes per second of HBM for each TensorCore."""
    return self.bandwidth / self.cores


# Sources: the page of each version at https://cloud.google.com/tpu/docs (peak, HBM, bandwidth,
# cores) and "TPU v4: An Optically Reconfigurable Supercomputer" (VMEM and clock of v4).
TPU_CHIPS = {
  "v4": TpuChip(("TPU v4",), 1, 2, 275e12, 32, 30.75, 1200e9, 1.05e9, 16 * _MIB),
  "v5e": TpuChip(
    ("TPU v5 lite", "TPU v5e"), 1, 1, 197e12, 16, 15.75, 819e9, 1.5e9, 128 * _MIB
  ),
  "v5p": TpuChip(("TPU v5", "TPU v5p"), 1, 2, 459e12, 96, 95.74, 2765e9, 1.75e9, 64 * _MIB),
  "v6e": TpuChip(
    ("TPU v6 lite", "TPU v6e"), 1, 1, 918e12, 32, 31.25, 1640e9, 1.75e9, 128 * _MIB
  ),
  "tpu7x": TpuChip(("TPU7x", "TPU7"), 2, 2, 2307e12, 192, 94.75, 7380e9, 1.75e9, 64 * _MIB),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class GpuChip:
  """One NVIDIA GPU.

  Attributes:
    peak_flops: dense matrix FLOP/s with bfloat16 or float16 inputs.
    shared_bytes: shared memory of one streaming multiprocessor.
  """

  peak_flops: float
  shared_bytes: int = 228 * _KIB


# The keys are how `device_kind` begins; the longest key that fits a device is its own. Sources:
# NVIDIA's data sheets (half of the figures that they give "with sparsity"), and "Technical
# Specifications per Compute Capability" in the CUDA programming guide (shared memory).
GPU_CHIPS = {
  "NVIDIA A100": GpuChip(312e12, shared_bytes=164 * _KIB),
  "NVIDIA H100": GpuChip(989.4e12),
  "NVIDIA H100 PCIe": GpuChip(756e12),
  "NVIDIA H100 NVL": GpuChip(835.5e12),
  "NVIDIA H200": GpuChip(989.4e12),
  "NVIDIA H200 NVL": GpuChip(835.5e12),
  "NVIDIA GH200": GpuChip(989.4e12),
  "NVIDIA B200": GpuChip(2250e12),
  "NVIDIA GB200": GpuChip(2500e12),
}
# The driver keeps this much of a multiprocessor's shared memory for each program that runs on it.
GPU_DRIVER_BYTES = 1 * _KIB


@dataclasses.dataclass(frozen=True)
class GpuTarget:
  """An NVIDIA GPU that programs can be compiled for in its absence, as it describes itself.

  Attributes:
    device_kind: its `jax.Device.device_kind`.
    capability: its compute capability, major and minor.
    multiprocessors: number of streaming multiprocessors.
    nominal_memory: device memory in GiB by its data sheet.
    memory_bytes: the bytes of device memory that it reports.
    bandwidth: nominal bytes per second of device memory.
    l2: bytes of the second-level cache.
    clock: cycles per second of a multiprocessor.
    program_bytes: the most shared memory that one program may ask for.
  """

  device_kind: str
  capability: tuple[int, int]
  multiprocessors: int
  nominal_memory: float
  memory_bytes: int
  bandwidth: int
  l2: int
  clock: float
  program_bytes: int = 227 * _KIB

  @property
  def device_memory(self) -> float:
    """Device memory in GiB by the data sheet."""
    return self.nominal_memory

  @property
  def available_memory(self) -> float:
    """The GiB that the GPU reports. A CUDA context takes about half a GiB of them."""
    return self.memory_bytes / 2**30


# Sources: the descriptions of GPUs that come with XLA, and NVIDIA's data sheets.
GPU_TARGETS = {
  "h100": GpuTarget(
    "NVIDIA H100 80GB HBM3", (9, 0), 132, 80, 84_942_979_072, 3_352_320_000_000, 50 * _MIB, 1.98e9
  ),
  "b200": GpuTarget(
    "NVIDIA B200", (10, 0), 148, 180, 191_514_411_008, 7_672_320_000_000, 132_644_864, 1.965e9
  ),
  # Of Blackwell too, but with less than half of the shared memory.
  "rtxpro6000": GpuTarget(
    "NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 188, 96, 103_079_215_104,
    1_792_000_000_000, 128 * _MIB, 2.6e9, program_bytes=99 * _KIB,
  ),
}  # fmt: skip


def find_tpu(device_kind: str) -> str | None:
  """Returns the key in `TPU_CHIPS` of a `jax.Device.device_kind`, None if it is no known TPU."""
  kinds = {kind: name for name, chip in TPU_CHIPS.items() for kind in chip.device_kinds}
  return kinds.get(device_kind)


def find_gpu(device_kind: str) -> str | None:
  """Returns the key in `GPU_CHIPS` of a `jax.Device.device_kind`, None if it is no known GPU."""
  return max(filter(device_kind.startswith, GPU_CHIPS), key=len, default=None)


def find_target(device_kind: str) -> GpuTarget | None:
  """Returns the GPU of a `jax.Device.device_kind` that is compiled for in its absence, or None."""
  return next((gpu for gpu in GPU_TARGETS.values() if gpu.device_kind == device_kind), None)
