"""The arms of a read of residual streams, with the coefficients of `mhc`, from R streams [T, D]."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from launch.bench.kernels import arg_specs, reads
from launch.bench.kernels.arg_specs import ReadShape
from launch.bench.kernels.cases import Arm, random_arrays
from resjax.base import Array
from resjax.combinators import SinkhornGates
from resjax.kernels import IMPLEMENTATIONS
from resjax.kernels.streams import Pending, stream_read

NAMES = ("xla_no_stack", "direct", "residual_norm")
_Inputs = tuple[Array, Array, Array, Array, Array, Array]


def inputs(shape: ReadShape) -> _Inputs:
  """Returns φ, its biases, the gain, M and b of the write, the R streams, and a branch output."""
  count, tokens, width = shape.num_sources, shape.num_tokens, shape.d_model
  columns = count * (count + 2)
  (phi,) = random_arrays(1, 1, (count, width, columns), "float32")
  bias, gain = random_arrays(2, 1, (columns,), "float32") + random_arrays(3, 1, (width,), "float32")
  (weights,) = random_arrays(4, 1, (count * (count + 1), tokens), "float32")
  *streams, out = random_arrays(5, count + 1, (tokens, width))
  return phi / math.sqrt(count * width), bias, 1 + gain / 8, weights, jnp.stack(streams), out


def arms(shape: ReadShape) -> dict[str, Arm]:
  """Returns the arms in JAX by name; `direct` is the kernel."""
  given, count = inputs(shape), shape.num_sources
  *_, gain, weights, streams, out = given
  d_x, d_sum = random_arrays(6, 2, out.shape)
  d_out = d_x, streams[::-1], weights[::-1]
  least = arg_specs.stream_read_forward(count), arg_specs.stream_read_backward(count)
  plain = arg_specs.residual_forward(), arg_specs.residual_backward()
  best = reads.first_that_runs(IMPLEMENTATIONS, lambda name: jax.eval_shape(_read_by(name), *given))
  return {
    "xla_no_stack": Arm(_read_by("reference"), given, d_out, *least, "reference"),
    "direct": Arm(_read_by(best), given, d_out, *least, best),
    "residual_norm": Arm(
      reads.residual_norm, (gain, streams[0], out), (d_x, d_sum), *plain, num_constant=1
    ),
  }


def _read_by(implementation: str) -> Callable[..., tuple[Array, Array, Array]]:
  def read(
    phi: Array, bias: Array, gain: Array, weights: Array, streams: Array, out: Array
  ) -> tuple[Array, Array, Array]:
    return stream_read(
      Pending(streams, weights, out), phi, (bias,), _coefficients, norm_gain=gain,
      norm_eps=reads.EPS, implementation=implementation,
    )  # fmt: skip

  return read


def _coefficients(
  products: Array | None, squares: Array | None, parameters: tuple[Array]
) -> tuple[Array, Array | None, Array]:
  assert products is not None and squares is not None  # there is a φ
  normed = products * jax.lax.rsqrt(jnp.mean(squares, axis=0) + reads.EPS)
  return SinkhornGates(len(squares))(normed, *parameters, jnp.ones((3, 1)))
