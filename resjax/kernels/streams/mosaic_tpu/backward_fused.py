"""The reverse kernel for TPUs: streams and their cotangents are loaded once and written once."""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.kernels.mosaic_tpu import ROWS, TOKENS, Span, columns, for_each_row_group, wide
from resjax.kernels.streams.mosaic_tpu import budget
from resjax.kernels.streams.mosaic_tpu import phi as on_chip
from resjax.kernels.streams.mosaic_tpu import plan as tiles
from resjax.kernels.streams.mosaic_tpu import reverse_steps as steps
from resjax.kernels.streams.mosaic_tpu.coefficients import pull_back
from resjax.kernels.streams.mosaic_tpu.plan import Inputs, Plan
from resjax.kernels.streams.mosaic_tpu.reverse_steps import Given
from resjax.kernels.streams.operands import Read


class _Scratch(NamedTuple):
  """Buffers in VMEM. The streams after the write share memory with their sources' cotangents.

  Attributes:
    weights, read, dots: columns of M and b, of p, and of sums over channels.
    rows: cotangents of the streams after the write in float32 [R, TOKENS, D].
    d_x: the cotangent of what was read, before its norm [TOKENS, D] float32.
    mixed: [ROWS, D].
    phi: `Phi`, or None.
  """

  weights: Any
  read: Any
  dots: Any
  rows: Any
  d_x: Any
  mixed: Any
  phi: Any


def backward(read: Read, plan: Plan, buffers: int, given: Given) -> Inputs:
  """Returns the cotangents of the arrays of `Inputs`, those without token axes [parts, ...].

  There are `buffers` tiles of streams on the chip beside each other.
  """
  count, tokens, width = plan.num_streams, plan.num_tokens, plan.width
  phi_spec = None if given.phi is None else on_chip.SPEC
  whole: tuple[Any, Any] = plan.whole((given.parameters, given.gain))
  sum_shapes, sum_specs = plan.summed(steps.sums(plan, given))
  weight_spec, out_spec = plan.numbers(plan.num_weights), plan.tokens(buffers)
  pending_specs = plan.streams(buffers), weight_spec, out_spec
  kept_specs = plan.numbers(plan.num_products), plan.numbers(plan.num_squares)
  numbers = 3 * plan.num_weights + plan.num_products + plan.num_squares
  return plan.run(
    read, lambda *refs: _run(read, plan, *refs), "stream_read_backward",
    (given,),
    in_specs=(
      Given(*pending_specs, phi_spec, *whole, *kept_specs, out_spec, *pending_specs[:2]),
    ),
    out_specs=Inputs(plan.streams(buffers), weight_spec, out_spec, *sum_specs),
    out_shape=Inputs(
      plan.like(count, tokens, width), plan.like(plan.num_weights, tokens, dtype=jnp.float32),
      plan.like(tokens, width), *sum_shapes,
    ),
    scratch=_Scratch(
      columns.room(plan.num_weights),
      columns.room(count),
      columns.room(plan.num_weights),
      pltpu.VMEM((count, TOKENS, width), jnp.float32),
      pltpu.VMEM((TOKENS, width), jnp.float32),
      pltpu.VMEM((ROWS, width), jnp.float32),
      on_chip.room(plan),
    ),
    vmem_limit=budget.vmem_limit(read),
    cost=pl.CostEstimate(
      flops=2 * (3 * plan.num_weights + 3 * count * (1 + plan.num_columns)) * tokens * width,
      transcendentals=tokens,
      bytes_accessed=(3 * count + 3) * plan.stream_bytes
      + plan.number_bytes(numbers)
      + (budget.fetches(read, plan) + plan.grid[0]) * plan.phi_bytes,
    ),
  )  # fmt: skip


def _run(read: Read, plan: Plan, given: Given, outputs: Inputs, scratch: _Scratch) -> None:
  """Runs the reverse pass of one tile of tokens."""

  @pl.when(pl.program_id(1) == 0)
  def _() -> None:
    steps.clear((outputs.phi, outputs.parameters, outputs.gain))

  if plan.num_columns:
    on_chip.load_at_start(plan, budget.fetches(read, plan), given.phi.at[read.site], scratch.phi)
  streams = outputs.streams
  columns.write(given.weights[...], scratch.weights)
  tiles.write_streams(plan, given.streams, given.out, scratch.weights, streams)
  p, pull = pull_back(read, plan, given.products, given.mean_squares, given.parameters)
  columns.write(p, scratch.read)
  refs = steps.Unmix(given.d_x, given.gain, outputs.gain, scratch.read, scratch.mixed, scratch.dots)

  def unmix(_: Array, rows: Span) -> None:
    steps.unmix(read, plan, refs, tiles.chunks_of(streams), rows, scratch.d_x)

  for_each_row_group(TOKENS, unmix)
  d_read = columns.read(scratch.dots, plan.num_streams)
  d_products, d_squares, d_parameters = pull(d_read, given.d_weights)
  steps.add(outputs.parameters, d_parameters)
  if d_squares is not None:
    steps.project_back(
      plan, scratch.phi.kept, outputs.phi, lambda r: d_products[r if plan.shared else 0], streams,
      scratch.rows,
    )  # fmt: skip
    columns.write(d_squares * (2 / plan.width), scratch.dots)

  def add(_: Array, rows: Span) -> None:
    factors, d_read = (scratch.read, scratch.dots), partial(wide, scratch.d_x)
    steps.add_rows(plan, given, streams, factors, d_read, rows, scratch.rows)

  def write(_: Array, rows: Span) -> None:
    sources = tiles.chunks_of(given.streams, given.out)
    targets = outputs.streams, outputs.out
    steps.write_rows(plan, sources, targets, scratch.weights, scratch.dots, scratch.rows, rows)

  for_each_row_group(TOKENS, add)
  for_each_row_group(TOKENS, write)
  outputs.weights[...] = columns.read(scratch.dots, plan.num_weights)
