"""The first of two reverse kernels for TPUs: back through the read, to numbers per token.

The streams H after the write are sums of the pending streams and the output, here G_s together, and
so is what was read: Σ_r p_r H_r = Σ_s q_s G_s with q_s = Σ_r p_r M_rs. With the cotangent dx of it,
⟨dx, H_r⟩ = Σ_s M_rs ⟨dx, G_s⟩. So the kernel does not apply the write.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.kernels.mosaic_tpu import ROWS, TOKENS, Span, columns, for_each_row_group
from resjax.kernels.operation import Ref
from resjax.kernels.streams.mosaic_tpu import budget
from resjax.kernels.streams.mosaic_tpu import plan as tiles
from resjax.kernels.streams.mosaic_tpu import reverse_steps as steps
from resjax.kernels.streams.mosaic_tpu.coefficients import pull_back
from resjax.kernels.streams.mosaic_tpu.plan import Plan
from resjax.kernels.streams.mosaic_tpu.reverse_steps import Given
from resjax.kernels.streams.operands import Read


class ReadBack(NamedTuple):
  """What the kernel writes.

  Attributes:
    read: p [R, T] float32.
    norms: the inverse RMS of what was read, and the correction of `norm_back` [2, T] float32; or
      None without a norm.
    products: cotangent of the products with φ, flat [K or R K, T] float32, or None.
    squares: that of the mean squares times 2 / D [R, T] float32, or None.
    parameters: that of the parameters [parts, ...].
    gain: that of the gain [parts, ROWS, D], or None.
  """

  read: Any
  norms: Any
  products: Any
  squares: Any
  parameters: Any
  gain: Any


class _Scratch(NamedTuple):
  """Buffers in VMEM.

  Attributes:
    factors, dots: columns of q, and of the products of the cotangent with every source.
    norms: columns as in `ReadBack`.
    mixed: [ROWS, D].
  """

  factors: Any
  dots: Any
  norms: Any
  mixed: Any


def backward(read: Read, plan: Plan, buffers: int, given: Given) -> ReadBack:
  """Returns numbers of every token for the second kernel, and sums over tokens.

  φ and the cotangents of the streams are not used, and there are `buffers` tiles of streams on the
  chip beside each other.
  """
  count, tokens, width = plan.num_streams, plan.num_tokens, plan.width
  given = given._replace(phi=None, d_streams=None)
  _, *sums = steps.sums(plan, given)
  rows = count, 2 if given.gain is not None else 0, plan.num_products, plan.num_squares
  shapes = [plan.like(n, tokens, dtype=jnp.float32) if n else None for n in rows]
  weight_spec, out_spec = plan.numbers(plan.num_weights), plan.tokens(buffers)
  sum_shapes, sum_specs = plan.summed(sums)
  whole: tuple[Any, Any] = plan.whole((given.parameters, given.gain))
  return plan.run(
    read, lambda *refs: _run(read, plan, *refs), "stream_read_backward_read",
    (given,),
    in_specs=(
      Given(
        plan.streams(buffers), weight_spec, out_spec, None,
        *whole,
        plan.numbers(plan.num_products), plan.numbers(plan.num_squares), out_spec, None,
        weight_spec,
      ),
    ),
    out_specs=ReadBack(*map(plan.numbers, rows), *sum_specs),
    out_shape=ReadBack(*shapes, *sum_shapes),
    scratch=_Scratch(
      columns.room(count + 1),
      columns.room(count + 1),
      columns.room(2),
      pltpu.VMEM((ROWS, width), jnp.float32),
    ),
    vmem_limit=budget.vmem_limit(read),
    cost=pl.CostEstimate(
      flops=4 * (count + 1) * tokens * width,
      transcendentals=tokens,
      bytes_accessed=(count + 2) * plan.stream_bytes
      + plan.number_bytes(2 * plan.num_weights + plan.num_products + plan.num_squares + sum(rows)),
    ),
  )  # fmt: skip


def _run(read: Read, plan: Plan, given: Given, outputs: ReadBack, scratch: _Scratch) -> None:
  """Runs the backward of the read of one tile of tokens."""

  @pl.when(pl.program_id(1) == 0)
  def _() -> None:
    steps.clear((outputs.parameters, outputs.gain))

  p, pull = pull_back(read, plan, given.products, given.mean_squares, given.parameters)
  outputs.read[...] = p
  columns.write(_through_write(plan, p, given.weights), scratch.factors)
  sources = tiles.chunks_of(given.streams, given.out)
  refs = steps.Unmix(
    given.d_x, given.gain, outputs.gain, scratch.factors, scratch.mixed, scratch.dots
  )

  def unmix(_: Array, rows: Span) -> None:
    norms = steps.unmix(read, plan, refs, sources, rows)
    for number, values in enumerate(norms):
      scratch.norms[rows, number : number + 1] = values[:, :1]

  for_each_row_group(TOKENS, unmix)
  dots = columns.read(scratch.dots, plan.num_streams + 1)
  d_p = _of_streams(plan, dots, given.weights)
  d_products, d_squares, d_parameters = pull(d_p, given.d_weights)
  steps.add(outputs.parameters, d_parameters)
  if outputs.norms is not None:
    outputs.norms[...] = columns.read(scratch.norms, 2)
  for r, d in enumerate(d_products):
    outputs.products[r * plan.num_columns : (r + 1) * plan.num_columns, :] = d
  if d_squares is not None:
    outputs.squares[...] = d_squares * (2 / plan.width)


def _through_write(plan: Plan, p: Array, weights: Ref) -> Array:
  """Returns Σ_r p_r M_rs of every source, and Σ_r p_r b_r: [R + 1, TOKENS]."""
  size = plan.num_streams + 1
  rows = [p[r : r + 1] * weights[r * size : (r + 1) * size, :] for r in range(plan.num_streams)]
  return sum(rows[1:], rows[0])


def _of_streams(plan: Plan, dots: Array, weights: Ref) -> Array:
  """Returns ⟨dx, H_r⟩ of every stream after the write [R, TOKENS] of ⟨dx, G_s⟩ [R + 1, TOKENS]."""
  size = plan.num_streams + 1
  rows = [weights[r * size : (r + 1) * size, :] * dots for r in range(plan.num_streams)]
  return jnp.concatenate([jnp.sum(row, axis=0, keepdims=True) for row in rows])
