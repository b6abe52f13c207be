import math

import jax
import jax.numpy as jnp
import pytest

from resjax.train import metrics


def test_bits_per_byte_of_a_uniform_code():
  # 10 targets of 2 bytes, each one of 16 equally likely tokens: 4 bits for 2 bytes.
  assert metrics.bits_per_byte(10 * math.log(16), 20) == pytest.approx(2.0, rel=1e-15)
  assert metrics.bits_per_byte(jnp.float32(math.log(2)), jnp.float32(1)) == pytest.approx(1.0)


@pytest.mark.parametrize("count", [0, -1, math.nan])
def test_no_bytes(count):
  with pytest.raises(ValueError, match="bytes"):
    metrics.bits_per_byte(1.0, count)


@pytest.mark.parametrize(
  ("kind", "tera"),
  [
    ("TPU v4", 275),
    ("TPU v5 lite", 197),
    ("TPU v5e", 197),
    ("TPU v5", 459),
    ("TPU v5p", 459),
    ("TPU v6 lite", 918),
    ("TPU v6e", 918),
    ("TPU7x", 1153.5),  # half a chip
    ("NVIDIA A100-SXM4-80GB", 312),
    ("NVIDIA H100 80GB HBM3", 989.4),
    ("NVIDIA H100 PCIe", 756),
    ("NVIDIA H100 NVL", 835.5),
    ("NVIDIA H200", 989.4),
    ("NVIDIA B200", 2250),
  ],
)
def test_peak_flops(kind, tera):
  assert metrics.peak_flops(kind, jnp.bfloat16) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
  ("kind", "dtype"),
  [
    ("cpu", "bfloat16"),
    ("TPU v4 lite", "bfloat16"),
    ("TPU v5e", "float32"),
    ("TPU v5e", "float16"),
    ("NVIDIA H100 80GB HBM3", "float32"),
    ("NVIDIA GeForce RTX 4090", "bfloat16"),
  ],
)
def test_unknown_peak(kind, dtype):
  assert metrics.peak_flops(kind, dtype) is None


def test_float16_is_as_fast_as_bfloat16_on_gpus():
  assert metrics.peak_flops("NVIDIA H200", jnp.float16) == 989.4e12


def test_mfu():
  assert metrics.mfu(6e9, 1e4, 2e14) == pytest.approx(0.3)
  assert (
    metrics.mfu(6e9, 1e4, metrics.peak_flops(jax.devices("cpu")[0].device_kind, "bfloat16")) is None
  )


class Clock:
  now = 100.0

  def __call__(self):
    return self.now


def test_throughput_leaves_out_pauses_and_starts_anew():
  clock = Clock()
  throughput = metrics.Throughput(clock)
  throughput.add(300)
  clock.now += 2
  with throughput.paused():
    clock.now += 50
  throughput.add(100)
  clock.now += 2
  assert throughput.read() == 100.0
  assert throughput.read() == 0.0
  with pytest.raises(RuntimeError), throughput.paused():
    clock.now += 7
    raise RuntimeError
  throughput.add(30)
  clock.now += 3
  assert throughput.read() == 10.0
