"""Arms of a run of sublayers with Block AttnRes: what its residual path alone costs.

A branch is the identity: its output is what the sublayer read, behind a barrier that keeps XLA from
fusing across it, as a matrix product would. The reads are softmax mixtures (and norms) of each
other, so XLA can remove none of them.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from resjax.kernels.depth_attention import Sources, arg_specs, depth_attention
from resjax.kernels.depth_attention.arg_specs import NetworkShape, ReadShape
from resjax.kernels.depth_attention.bench import reads
from resjax.kernels.depth_attention.bench.cases import Arm, random_arrays
from resjax.typing import Array

NAMES = ("xla_stack", "xla_no_stack", "direct", "two_phase", "residual_norm")

# Takes query, norm gain (or None), sources and what joins the last one (or None); returns what the
# sublayer reads and the sources with that in them.
Reader = Callable[
  [Array, Array | None, tuple[Array, ...], Array | None], tuple[Array, tuple[Array, ...]]
]


def inputs(shape: NetworkShape) -> tuple[Array, Array | None, tuple[Array, ...]]:
  """Returns queries [L + 1, D], norm gains [L + 1, D] or None, and the first sources [T, D]."""
  rows = shape.num_sublayers + 1
  queries, gains = (jnp.stack(random_arrays(s, rows, (shape.d_model,), "float32")) for s in (4, 5))
  sources = random_arrays(6, shape.num_completed, (shape.num_tokens, shape.d_model))
  queries = queries / jnp.sqrt(shape.d_model)
  return queries, 1 + gains / 8 if shape.normed else None, tuple(sources)


def arms(shape: NetworkShape) -> dict[str, Arm]:
  """Returns the arms in JAX by name."""
  *weights, sources = network_inputs = inputs(shape)
  d_out = random_arrays(8, 1, sources[0].shape)[0]
  direct = arg_specs.direct_forward(shape), arg_specs.direct_backward(shape)
  num_sources = shape.completed()[-1] + 2
  best = reads.best_implementation(ReadShape(shape.num_tokens, shape.d_model, num_sources))
  plain = [
    (shape.num_sublayers + shape.final_read) * streams
    for streams in (arg_specs.residual_forward(), arg_specs.residual_backward())
  ]

  def arm(reader, streams, implementation="XLA"):
    forward = partial(walk, shape, reader)
    return Arm(forward, network_inputs, d_out, *streams, implementation)

  return {
    "xla_stack": arm(stack_reader, direct),
    "xla_no_stack": arm(reader_by("reference"), direct, "reference"),
    "direct": arm(reader_by(best), direct, best),
    "residual_norm": Arm(partial(plain_walk, shape), (*weights, sources[:1]), d_out, *plain),
  }


def walk(shape: NetworkShape, reader: Reader, queries, gains, sources) -> Array:
  """Returns the last read of the network, reading its sources one sublayer after the other."""
  addend = None
  for index in range(shape.num_sublayers):
    y, sources = reader(queries[index], _row(gains, index), sources, addend)
    out = branch(y)
    starts_block = index % shape.block_sublayers == 0
    sources, addend = ((*sources, out), None) if starts_block else (sources, out)
  if not shape.final_read:
    return out
  return reader(queries[-1], _row(gains, -1), sources, addend)[0]


def plain_walk(shape: NetworkShape, queries, gains, sources) -> Array:
  """The same number of sublayers with a plain residual; the norm is always there."""
  gains = queries if gains is None else gains
  (y,) = (total,) = sources
  for gain in gains[: shape.num_sublayers + shape.final_read]:
    y, total = reads.residual_norm(gain, total, branch(y))
  return y


def branch(y: Array) -> Array:
  """The identity, opaque to XLA."""
  return jax.lax.optimization_barrier(y)


def stack_reader(query, gain, sources, addend):
  """Add, read and norm as three steps, the read over a stack."""
  if addend is not None:
    sources = (*sources[:-1], sources[-1] + addend)
  h = reads.stack_read(query, jnp.ones_like(query), sources)
  return h if gain is None else reads.norm(h, gain), sources


def reader_by(implementation: str | None, **options) -> Reader:
  """Returns the reads of `depth_attention`: add and norm inside, sources threaded through."""

  def read(query, gain, sources, addend):
    y, threaded = depth_attention(
      Sources(sources),
      query,
      addend=addend,
      out_norm_scale=gain,
      eps=reads.EPS,
      return_sources=True,
      implementation=implementation,
      **options,
    )
    return y, threaded.recent

  return read


def _row(gains: Array | None, index: int) -> Array | None:
  return None if gains is None else gains[index]
