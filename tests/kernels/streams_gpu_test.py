"""Reads of residual streams in Mosaic GPU, in the interpreter of the newest JAX."""

import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.helpers import streams
from tests.helpers.compare import assert_close

interpreted = pytest.mark.skipif(
  not hasattr(plgpu, "InterpretGPUParams"), reason="this JAX has no interpreter of GPU kernels"
)


@interpreted
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
  "form, count, normed, width",
  [("joint", 4, True, 384), ("joint", 2, False, 128), ("shared", 3, True, 512),
   ("static", 2, True, 256), ("static", 1, False, 128), ("shared", 6, True, 128)],
)  # fmt: skip
def test_values_and_gradients(form, count, normed, width, dtype):
  case = form, count, dtype, normed, (5,), width
  found = streams.got("mosaic_gpu", plgpu.InterpretGPUParams(detect_races=True), *case)
  # The equations do not round the streams that are read to bfloat16.
  tolerance = 3e-6 if dtype == jnp.float32 else 1.5e-2
  assert_close(found, streams.wanted(*case), tolerance)
