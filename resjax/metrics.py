"""Numbers derived from loss sums and from time: bits per byte, MFU, tokens/s."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

import jax.numpy as jnp

# Dense bf16 matrix FLOP/s of one JAX device, by `device_kind`.
# Source: "Peak compute per chip (BF16)" of each version in the Cloud TPU documentation. A v4 or v5p
# chip is one device, a TPU7x chip is two.
_TPU_PEAK = {
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5e": 197e12,
  "TPU v5": 459e12,
  "TPU v5p": 459e12,
  "TPU v6 lite": 918e12,
  "TPU v6e": 918e12,
  "TPU7x": 2307e12 / 2,
}
# By the start of `device_kind`; the longest that fits counts. Sources: NVIDIA's data sheets of the
# A100, H100, H200, GH200, HGX B200 and GB200; half of the figures that they give "with sparsity".
_NVIDIA_PEAK = {
  "NVIDIA A100": 312e12,
  "NVIDIA H100": 989.4e12,
  "NVIDIA H100 PCIe": 756e12,
  "NVIDIA H100 NVL": 835.5e12,
  "NVIDIA H200": 989.4e12,
  "NVIDIA H200 NVL": 835.5e12,
  "NVIDIA GH200": 989.4e12,
  "NVIDIA B200": 2250e12,
  "NVIDIA GB200": 2500e12,
}


def peak_flops(device_kind: str, dtype: object) -> float | None:
  """Dense matrix FLOP/s of one JAX device, by the vendor's data sheet.

  Args:
    device_kind: as in `jax.devices()[0].device_kind`.
    dtype: of the products' inputs.

  Returns:
    FLOP/s, None for a CPU, an unlisted device, or a dtype without a figure: bfloat16 has one
    everywhere, float16 has the same one on GPUs.
  """
  name = jnp.dtype(dtype).name
  if device_kind in _TPU_PEAK:
    return _TPU_PEAK[device_kind] if name == "bfloat16" else None
  kinds = [kind for kind in _NVIDIA_PEAK if device_kind.startswith(kind)]
  if not kinds or name not in ("bfloat16", "float16"):
    return None
  return _NVIDIA_PEAK[max(kinds, key=len)]


def mfu(flops_per_token: float, tokens_per_second: float, peak_flops: float | None) -> float | None:
  """flops_per_token · tokens_per_second / peak_flops (Chowdhery et al. 2022, App. B).

  Args:
    flops_per_token: of the model, forward and backward, without recomputation.
    tokens_per_second: over all devices.
    peak_flops: summed over the same devices; None if not known.

  Returns:
    A share of 1, None without a peak.
  """
  return None if peak_flops is None else flops_per_token * tokens_per_second / peak_flops


def bits_per_byte(nats: float, num_bytes: float) -> float:
  """nats / (num_bytes · ln 2), comparable between tokenizers.

  Args:
    nats: cross-entropy summed over the targets.
    num_bytes: UTF-8 bytes of those targets.

  Raises:
    ValueError: there are no bytes, as in loss sums made without a `token_bytes` table.
  """
  if not num_bytes > 0:
    raise ValueError(f"bits per byte needs a positive number of bytes, not {num_bytes}")
  return float(nats) / (float(num_bytes) * math.log(2))


class Throughput:
  """Tokens per second since the last reading, without marked pauses.

    throughput = Throughput()
    throughput.add(tokens_of_a_step)  # every step
    with throughput.paused():  # evaluation, checkpoints
      ...
    rate = throughput.read()  # every log; wait for the step's result before

  Args:
    clock: seconds; for tests.
  """

  def __init__(self, clock: Callable[[], float] = time.perf_counter):
    self._clock = clock
    self._tokens = 0
    self._start = clock()

  def add(self, tokens: int) -> None:
    """Counts the tokens of a step."""
    self._tokens += tokens

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Time in this context does not count; contexts do not nest."""
    before = self._clock()
    try:
      yield
    finally:
      self._start += self._clock() - before

  def read(self) -> float:
    """Tokens per second since the last call, 0 if no time passed; starts a new window."""
    now = self._clock()
    seconds, tokens = now - self._start, self._tokens
    self._start, self._tokens = now, 0
    return tokens / seconds if seconds > 0 else 0.0
