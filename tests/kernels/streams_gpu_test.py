"""Reads of residual streams in Mosaic GPU: lowered for cuda, and in the interpreter of new JAX."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base.sharding import Layout
from resjax.kernels.mosaic_gpu import tiles as gpu_tiles
from resjax.kernels.streams import Pending, operation, stream_read
from resjax.kernels.streams.mosaic_gpu import obstacles
from resjax.kernels.streams.operands import Operands, Read
from resjax.testing.compare import assert_close
from tests.helpers import gpus, layouts, streams

interpreted = pytest.mark.skipif(
  not hasattr(plgpu, "InterpretGPUParams"), reason="this JAX has no interpreter of GPU kernels"
)


@interpreted
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
  "form, count, normed, width, programs",
  [
    ("joint", 4, True, 384, 1),
    pytest.param("joint", 2, False, 128, 4, marks=pytest.mark.release),
    ("shared", 3, True, 512, 2),
    ("static", 2, True, 256, 1),
    pytest.param("static", 1, False, 128, 2, marks=pytest.mark.release),
    pytest.param("shared", 6, True, 128, 2, marks=pytest.mark.release),
  ],
)
def test_values_and_gradients(monkeypatch, form, count, normed, width, programs, dtype):
  # With one program its ring, of three tokens at most, goes round.
  monkeypatch.setattr(gpu_tiles, "most_programs", lambda like: programs)
  case = form, count, dtype, normed, (5,), width
  got = streams.got("mosaic_gpu", plgpu.InterpretGPUParams(detect_races=True), *case)
  # The equations do not round the streams that are read to bfloat16.
  tolerance = 3e-6 if dtype == jnp.float32 else 1.5e-2
  assert_close(got, streams.wanted(*case), tolerance)


def operands(count, tokens, width, dtype=jnp.bfloat16, columns=4):
  """Shapes of a read of streams that have one φ together."""
  pending = Pending(
    jax.ShapeDtypeStruct((count, *tokens, width), dtype),
    jax.ShapeDtypeStruct((count * (count + 1), *tokens), jnp.float32),
    jax.ShapeDtypeStruct((*tokens, width), dtype),
  )
  phi = jax.ShapeDtypeStruct((width, columns), jnp.float32)
  parameters = (jax.ShapeDtypeStruct((count, columns), jnp.float32),)
  return Operands(pending, phi, parameters, jax.ShapeDtypeStruct((width,), jnp.float32))


def test_a_device_lowers_the_kernels_for_its_own_tokens():
  layout = layouts.layout("long_context", data=2, fsdp=2, sequence=2)
  read = Read(streams.free, 0, 1e-6, implementation="mosaic_gpu", layout=layout)
  inputs = operands(2, (4, 10), 128)
  inputs = inputs._replace(projection=jax.ShapeDtypeStruct((1, 128, 4), jnp.float32))  # a stack
  forward = functools.partial(operation.forward, read)
  text = gpus.lowered(forward, inputs)
  assert text.count("@mosaic_gpu") == 2 and "tensor<2x5x1x128xbf16>" in text
  x, written, mixing, stats = jax.eval_shape(forward, inputs)
  text = gpus.lowered(
    functools.partial(operation.backward, read), inputs, stats, x, written, mixing
  )
  assert text.count("@mosaic_gpu") == 2 and "tensor<2x5x1x128xbf16>" in text
  assert "all_reduce" in text and "all_gather" not in text


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"count": 11}, ["11 streams", "up to 10"]),
    ({"width": 8320}, ["8320", "8192"]),
    ({"width": 8192}, ["4 streams of width 8192", "233472 bytes"]),
    ({"width": 7168}, None),
    ({"capability": "8.0"}, ["'a GPU'", "8.0", "9.0"]),
    ({"program_bytes": 24 * 1024}, ["4 streams of width 2048", "25600 bytes"]),
  ],
)
def test_what_the_kernels_cannot_do(monkeypatch, changes, words):
  changes = dict(changes)
  count, width = changes.pop("count", 4), changes.pop("width", 2048)
  monkeypatch.setattr(Layout, "device", gpus.Gpu(**changes))
  read = Read(streams.free, 0, 1e-6, implementation="mosaic_gpu")
  obstacle = obstacles.obstacle(read, operands(count, (3,), width))
  assert (obstacle is None) == (words is None)
  assert all(word in obstacle for word in words or [])


def test_without_a_gpu_the_name_is_refused():
  pending, phi, parameters, _ = operands(2, (3,), 128)
  read = functools.partial(stream_read, coefficients=streams.free, implementation="mosaic_gpu")
  with pytest.raises(ValueError, match=r"'mosaic_gpu'.*platform 'gpu'.*'cpu'"):
    jax.eval_shape(read, pending, phi, parameters)
