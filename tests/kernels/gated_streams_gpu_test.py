"""Gated reads of streams in Mosaic GPU: lowered for cuda, and in the interpreter of new JAX."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base.sharding import Layout
from resjax.kernels.gated_streams import gated_read
from resjax.kernels.gated_streams.mosaic_gpu import obstacles
from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.gated_streams.operation import READ
from resjax.kernels.mosaic_gpu import tiles as gpu_tiles
from resjax.testing.compare import assert_close
from tests.helpers import gated_streams, gpus, layouts

interpreted = pytest.mark.skipif(
  not hasattr(plgpu, "InterpretGPUParams"), reason="this JAX has no interpreter of GPU kernels"
)


@interpreted
@pytest.mark.parametrize(
  "count, shared, injected, rank, width, programs, dtype",
  [
    (2, False, True, 8, 384, 1, jnp.float32),
    (4, True, True, 8, 256, 1, jnp.bfloat16),
    (1, False, False, 130, 128, 2, jnp.float32),
    (3, True, False, 8, 512, 2, jnp.bfloat16),
    pytest.param(7, False, True, 8, 128, 4, jnp.float32, marks=pytest.mark.release),
  ],
)
def test_values_and_gradients(monkeypatch, count, shared, injected, rank, width, programs, dtype):
  # With one program its ring goes round.
  monkeypatch.setattr(gpu_tiles, "most_programs", lambda like: programs)
  case = count, shared, injected, rank, dtype, (5,), width
  got = gated_streams.got("mosaic_gpu", plgpu.InterpretGPUParams(detect_races=True), *case)
  # The equations round neither normalised streams nor gates to bfloat16.
  tolerance = 3e-6 if dtype == jnp.float32 else 1.5e-2
  assert_close(got, gated_streams.wanted(*case), tolerance)


def operands(count, tokens, width, rank=8, dtype=jnp.bfloat16):
  """Shapes of a read after which something is written."""
  array = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
  return Operands(
    jax.ShapeDtypeStruct((count, *tokens, width), dtype), array((count, width)),
    array((count, width, rank)), array((count, rank, width)), array((count, width, count)),
  )  # fmt: skip


def test_a_device_lowers_the_kernels_for_its_own_tokens():
  layout = layouts.layout("long_context", data=2, fsdp=2, sequence=2)
  read = Read(1e-6, implementation="mosaic_gpu", layout=layout)
  inputs = operands(2, (4, 10), 128)
  forward = functools.partial(READ.forward, read)
  text = gpus.lowered(forward, inputs)
  assert text.count("@mosaic_gpu") == 2 and "tensor<2x5x1x128xbf16>" in text
  x, logits, squeezed = jax.eval_shape(forward, inputs)
  backward = functools.partial(READ.backward, read)
  text = gpus.lowered(backward, inputs, squeezed, x, logits, inputs.streams)
  assert text.count("@mosaic_gpu") == 2 and "tensor<2x5x1x128xbf16>" in text
  assert "all_reduce" in text and "all_gather" not in text


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"count": 16}, ["16 streams", "up to 15"]),
    ({"count": 5, "width": 8192}, ["5 streams of width 8192", "233472 bytes"]),
    ({"width": 7168}, None),
    ({"capability": "8.0"}, ["'a GPU'", "8.0", "9.0"]),
    ({"program_bytes": 24 * 1024}, ["4 streams of width 2048", "25600 bytes"]),
  ],
)
def test_what_the_kernels_cannot_do(monkeypatch, changes, words):
  changes = dict(changes)
  count, width = changes.pop("count", 4), changes.pop("width", 2048)
  monkeypatch.setattr(Layout, "device", gpus.Gpu(**changes))
  read = Read(1e-6, implementation="mosaic_gpu")
  obstacle = obstacles.obstacle(read, operands(count, (3,), width))
  assert (obstacle is None) == (words is None)
  assert all(word in obstacle for word in words or [])


def test_without_a_gpu_the_name_is_refused():
  read = functools.partial(gated_read, implementation="mosaic_gpu")
  with pytest.raises(ValueError, match=r"'mosaic_gpu'.*platform 'gpu'.*'cpu'"):
    jax.eval_shape(read, *operands(2, (3,), 128))
