"""The arms of a run of sublayers with Block AttnRes, of which only the residual path costs."""

from functools import partial

import jax
import jax.numpy as jnp

from launch.bench.kernels import reads, walks
from launch.bench.kernels.arg_specs import NetworkShape, ReadShape
from launch.bench.kernels.cases import Arm, random_arrays
from resjax.base import Array
from resjax.kernels import IMPLEMENTATIONS
from resjax.kernels.depth_attention import depth_attention_block

NAMES = ("xla_stack", "xla_no_stack", "direct", "two_phase", "residual_norm")


def inputs(shape: NetworkShape) -> tuple[Array, Array | None, tuple[Array, ...]]:
  """Returns queries [L + 1, D], norm gains [L + 1, D] or None, and the first sources [T, D]."""
  rows = shape.num_sublayers + 1
  queries, gains = (jnp.stack(random_arrays(s, rows, (shape.d_model,), "float32")) for s in (4, 5))
  sources = random_arrays(6, shape.num_completed, (shape.num_tokens, shape.d_model))
  queries = queries / jnp.sqrt(shape.d_model)
  return queries, 1 + gains / 8 if shape.normed else None, tuple(sources)


def arms(shape: NetworkShape) -> dict[str, Arm]:
  """Returns the arms in JAX by name."""
  *weights, sources = inputs(shape)
  d_out = random_arrays(8, 1, sources[0].shape)[0]
  most = shape.completed()[-1] + 1
  best = reads.best_implementation(ReadShape(shape.num_tokens, shape.d_model, most))
  kernels = {"xla_no_stack": "reference", "direct": best, "two_phase": _phase_1(shape, sources)}
  forms, passes = walks.forms(shape), walks.least_passes(shape)

  def arm(name: str) -> Arm:
    first = sources[:1] if name == "residual_norm" else sources
    kernel = kernels.get(name, "XLA")
    return Arm(forms[name], (*weights, first), d_out, *passes[name], kernel)

  return {name: arm(name) for name in NAMES}


def _phase_1(shape: NetworkShape, sources: tuple[Array, ...]) -> str:
  """Returns the kernel of phase 1 that can run on this platform, or `reference`."""
  queries = jnp.zeros((shape.block_sublayers, shape.d_model))

  def trace(name: str) -> None:
    jax.eval_shape(partial(depth_attention_block, implementation=name), sources, queries)

  return reads.first_that_runs(IMPLEMENTATIONS, trace)
