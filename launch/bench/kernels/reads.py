"""The arms of one depth read, from query [D], key gain [D] and N sources [T, D] to [T, D]."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import jax
import jax.numpy as jnp

from launch.bench.kernels import arg_specs
from launch.bench.kernels.arg_specs import ReadShape
from launch.bench.kernels.cases import DTYPE, Arm, random_arrays
from resjax.base import Array
from resjax.kernels import IMPLEMENTATIONS
from resjax.kernels.depth_attention import depth_attention

EPS = 1e-6
NAMES = ("xla_stack", "xla_no_stack", "direct", "residual_norm")


def inputs(shape: ReadShape) -> tuple[Array, Array, tuple[Array, ...]]:
  """Returns query, key gain and sources; logits have standard deviation 1."""
  query, gain = random_arrays(1, 2, (shape.d_model,), "float32")
  sources = random_arrays(2, shape.num_sources, (shape.num_tokens, shape.d_model))
  return query / jnp.sqrt(shape.d_model), 1 + gain / 8, tuple(sources)


def arms(shape: ReadShape) -> dict[str, Arm]:
  """Returns the arms in JAX by name."""
  _, gain, sources = read_inputs = inputs(shape)
  d_out, d_sum = random_arrays(3, 2, sources[0].shape)
  least = arg_specs.read_forward(len(sources)), arg_specs.read_backward(len(sources))
  plain = arg_specs.residual_forward(), arg_specs.residual_backward()
  best = best_implementation(shape)
  return {
    "xla_stack": Arm(stack_read, read_inputs, d_out, *least),
    "xla_no_stack": Arm(_read_by("reference"), read_inputs, d_out, *least, "reference"),
    "direct": Arm(_read_by(best), read_inputs, d_out, *least, best),
    # Both summands have the same cotangent.
    "residual_norm": Arm(
      residual_norm, (gain, sources[0], sources[-1]), (d_out, d_sum), *plain, num_constant=1
    ),
  }


def stack_read(query: Array, gain: Array, sources: tuple[Array, ...]) -> Array:
  """Reads in the obvious form: stacks and normalises the sources, and contracts the stack twice."""
  values = jnp.stack(sources).astype(jnp.float32)
  keys = norm(values, gain)
  weights = jax.nn.softmax(jnp.einsum("n...d,d->n...", keys, query), axis=0)
  return jnp.einsum("n...,n...d->...d", weights, values).astype(sources[0].dtype)


def residual_norm(gain: Array, x: Array, out: Array) -> tuple[Array, Array]:
  """Returns the plain residual add and norm: (RMS(x + out) ⊙ gain, x + out)."""
  total = x + out
  return norm(total, gain), total


def norm(x: Array, gain: Array) -> Array:
  """Returns RMS(x) ⊙ gain, computed in float32."""
  wide = x.astype(jnp.float32)
  inverse_rms = jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + EPS)
  return (wide * inverse_rms * gain).astype(x.dtype)


def best_implementation(shape: ReadShape) -> str:
  """Returns the kernel that can run a read of this shape on this platform, or `reference`."""
  row = jax.ShapeDtypeStruct((shape.d_model,), jnp.float32)
  source = jax.ShapeDtypeStruct((shape.num_tokens, shape.d_model), jnp.dtype(DTYPE))
  abstract = row, row, (source,) * shape.num_sources
  return first_that_runs(IMPLEMENTATIONS, lambda name: jax.eval_shape(_read_by(name), *abstract))


def first_that_runs(backends: Iterable[str], trace: Callable[[str], Any]) -> str:
  """Returns the first kernel that `trace` does not refuse, or `reference`."""
  for name in backends:
    if name != "reference":
      try:
        trace(name)
      except ValueError:
        continue
      return name
  return "reference"


def _read_by(implementation: str) -> Callable[..., Array]:
  def read(query: Array, gain: Array, sources: tuple[Array, ...]) -> Array:
    return cast(
      Array,
      depth_attention(sources, query, key_scale=gain, eps=EPS, implementation=implementation),
    )

  return read
