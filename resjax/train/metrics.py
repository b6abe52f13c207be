"""Derives metrics from loss sums and from time: bits per byte, MFU, tokens per second."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

import jax.numpy as jnp
from jax.typing import DTypeLike

from resjax.base.hardware import chips


def peak_flops(device_kind: str, dtype: DTypeLike) -> float | None:
  """Returns the dense matrix FLOP/s of one JAX device by the vendor's data sheet.

  Args:
    device_kind: the device's own name, `jax.devices()[0].device_kind`.
    dtype: the dtype of the products' inputs.

  Returns:
    FLOP/s, or None for a CPU, an unlisted device, or a dtype without a figure. bfloat16 has one on
    every listed device, float16 has the same one on GPUs.
  """
  name = jnp.dtype(dtype).name
  if tpu := chips.find_tpu(device_kind):
    return chips.TPU_CHIPS[tpu].device_flops if name == "bfloat16" else None
  if gpu := chips.find_gpu(device_kind):
    return chips.GPU_CHIPS[gpu].peak_flops if name in ("bfloat16", "float16") else None
  return None


def mfu(flops_per_token: float, tokens_per_second: float, peak_flops: float | None) -> float | None:
  """Returns model FLOP utilisation (Chowdhery et al. 2022, App. B).

  flops_per_token · tokens_per_second / peak_flops

  Args:
    flops_per_token: FLOPs of the model, forward and backward, without recomputation.
    tokens_per_second: the rate over all devices.
    peak_flops: the sum over the same devices; None if it is not known.

  Returns:
    A number from 0 to 1, or None without a peak.
  """
  return None if peak_flops is None else flops_per_token * tokens_per_second / peak_flops


def bits_per_byte(nats: float, num_bytes: float) -> float:
  """Returns bits per byte, which can be compared between tokenizers: nats / (num_bytes · ln 2).

  Args:
    nats: the cross-entropy, summed over the targets.
    num_bytes: the UTF-8 bytes of these targets.

  Raises:
    ValueError: there are no bytes, as in loss sums where nobody has counted them.
  """
  if not num_bytes > 0:
    raise ValueError(f"bits per byte needs a positive number of bytes, not {num_bytes}")
  return float(nats) / (float(num_bytes) * math.log(2))


class Throughput:
  """Measures tokens per second since the last reading, without pauses that are marked.

    throughput = Throughput()
    throughput.add(tokens_of_a_step)  # every step
    with throughput.paused():  # evaluation, checkpoints
      ...
    rate = throughput.read()  # every log, after waiting for the step's result

  Args:
    clock: returns seconds; tests give their own.
  """

  def __init__(self, clock: Callable[[], float] = time.perf_counter):
    self._clock = clock
    self._tokens = 0
    self._start = clock()

  def add(self, tokens: int) -> None:
    """Adds the tokens of a step."""
    self._tokens += tokens

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Leaves out the time in this context; such contexts do not nest."""
    before = self._clock()
    try:
      yield
    finally:
      self._start += self._clock() - before

  def read(self) -> float:
    """Returns tokens per second since the last call, 0 if no time has passed."""
    now = self._clock()
    seconds, tokens = now - self._start, self._tokens
    self._start, self._tokens = now, 0
    return tokens / seconds if seconds > 0 else 0.0
