"""Gated reads of residual streams against their equations in float64, in plain JAX and as kernels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, Mesh

from resjax.aot import absent_devices
from resjax.hardware.chips import TPU_CHIPS
from resjax.kernels.gated_streams import gated_read
from resjax.sharding import MESH_AXES, Layout
from resjax.testing.compare import assert_close
from tests.helpers import gated_streams
from tests.helpers.libtpu import needs_libtpu

# Races are looked for, and memory starts as NaN.
INTERPRET = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
TOKENS = (2, 128)


@pytest.mark.parametrize(
  "count, shared, injected, rank, width, dtype",
  [
    (2, False, True, 8, 384, jnp.float32),
    (4, True, True, 8, 256, jnp.bfloat16),
    (1, False, False, 130, 128, jnp.float32),
    pytest.param(4, False, True, 130, 256, jnp.float32, marks=pytest.mark.slow),
    pytest.param(1, False, True, 8, 256, jnp.bfloat16, marks=pytest.mark.slow),
    pytest.param(2, False, False, 130, 512, jnp.bfloat16, marks=pytest.mark.slow),
    pytest.param(5, True, True, 8, 128, jnp.float32, marks=pytest.mark.slow),
    pytest.param(4, False, False, 8, 128, jnp.float32, marks=pytest.mark.release),
    pytest.param(2, True, True, 128, 256, jnp.bfloat16, marks=pytest.mark.release),
  ],
)
@pytest.mark.parametrize("implementation", ["reference", "mosaic_tpu"])
def test_values_and_gradients(
  implementation, count, shared, injected, rank, width, dtype, capfd
):  # fmt: skip
  case = count, shared, injected, rank, dtype, TOKENS, width
  interpret = INTERPRET if implementation == "mosaic_tpu" else False
  got = gated_streams.got(implementation, interpret, *case)
  # The equations round neither normalised streams nor gates to bfloat16.
  tolerance = 3e-6 if dtype == jnp.float32 else 1.5e-2
  assert_close(got, gated_streams.wanted(*case), tolerance)
  assert "RACE" not in capfd.readouterr().out
