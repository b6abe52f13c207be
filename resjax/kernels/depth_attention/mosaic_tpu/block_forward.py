"""The forward kernel of phase 1 for TPUs: every source is loaded once, for all reads.

The matrix unit computes the dot products of sources with all queries, and the mixes: for a group of
tokens, the weights of all reads are a matrix [S · ROWS, N · ROWS], zero between different tokens.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from resjax.base import Array
from resjax.kernels.depth_attention.mosaic_tpu.block_plan import (
  BlockPlan,
  matmul,
  matmul_transposed,
  over_slots,
)
from resjax.kernels.depth_attention.operands import Operands, Read, Stats
from resjax.kernels.mosaic_tpu import ROWS, SUBLANES, Span, call
from resjax.kernels.operation import LANES, Field


class _Inputs(NamedTuple):
  queries: Field
  slots: tuple[Field, ...]


class _Outputs(NamedTuple):
  """Outputs [S, T, D], and statistics in the layout of block_plan.py."""

  out: Field
  inverse_rms: Field
  logits: Field
  lse: Field


@call.on_one_device
def forward(read: Read, operands: Operands) -> tuple[Array, Stats]:
  """Runs the forward pass, see reference/block.py."""
  plan = BlockPlan.of("forward", read, operands)
  sizes, rows, groups = plan.sizes, plan.padded_reads, plan.num_groups
  reads, slots = plan.num_reads, sizes.num_slots
  queries = plan.queries(operands.query)
  out = jax.ShapeDtypeStruct((plan.num_reads, sizes.num_tokens, sizes.width), plan.dtype)
  written = call.launch(
    read,
    _Kernel,
    plan,
    "depth_attention_block_forward",
    operands.counts,
    inputs=_Inputs(call.tiled(queries, plan.whole_spec(len(queries))), plan.slots(operands)),
    outputs=_Outputs(
      call.tiled(out, plan.reads_spec()),
      plan.numbers(1, groups),
      plan.numbers(rows, groups),
      plan.numbers(rows, 1),
    ),
    cost=plan.cost((4 * reads + 2) * slots, reads * slots, slots + reads),
  )
  inverse_rms, logits, lse = map(plan.from_lanes, written[1:])
  return written.out, Stats(inverse_rms[0, :slots], logits[:reads, :slots], lse[:reads, 0])


class _Kernel(call.TileKernel[BlockPlan, _Inputs, _Outputs, tuple[()]]):
  def run(self) -> None:
    """Computes all reads of a tile, one group of tokens at a time."""
    plan, slots = self.plan, self.inputs.slots
    tile = plan.tile(pl.program_id(0), pl.program_id(1))
    plan.clear_empty_bank(self.counts, slots)
    plan.clear_rows_past_end(tile, slots)

    def run(index: Array, rows: Span) -> None:
      squares, dots = self._reduce(rows)
      self._mix(self._softmax(squares, dots, index), rows)

    plan.for_each_row_group(run)

  def _reduce(self, rows: Span) -> tuple[list[Array], list[Array]]:
    """Returns mean(v²) [SUBLANES, LANES], all rows equal, and g · v [S, LANES], by slot group."""
    plan, queries = self.plan, self.inputs.queries
    groups = range(plan.num_groups)

    def chunk(lanes: Span, sums: list) -> list:
      new = []
      for group, (squares, dots) in zip(groups, sums, strict=True):
        x = plan.slots_chunk(self.inputs.slots, group, rows, lanes)
        dots += matmul_transposed(queries[:, lanes], x)
        wide = x.astype(jnp.float32)
        for start in range(0, plan.chunk, LANES):
          squares += wide[:, start : start + LANES] ** 2
        new.append((squares, dots))
      return new

    zeros = jnp.zeros((LANES, LANES)), jnp.zeros((queries.shape[0], LANES))
    sums = plan.for_each_chunk(chunk, [zeros for _ in groups])
    # The product with constant rows sums over the lanes of each row, and has the result on lanes.
    mean = jnp.full((SUBLANES, LANES), 1 / plan.sizes.width, jnp.float32)
    squares = [matmul_transposed(mean, squares) for squares, _ in sums]
    return squares, [plan.sum_parts(dots) for _, dots in sums]

  def _softmax(self, squares: list[Array], dots: list[Array], index: Array) -> list[Array]:
    """Writes the statistics of a group of tokens; returns weights [S, LANES] by group of slots."""
    plan, outputs, logits = self.plan, self.outputs, []
    for group, (square, dot) in enumerate(zip(squares, dots, strict=True)):
      inverse_rms, lanes = lax.rsqrt(square + plan.eps)[:1], pl.ds(group * LANES, LANES)
      valid = plan.valid_slots(self.counts, group)
      logit = jnp.where(valid, dot * inverse_rms, -jnp.inf)
      outputs.inverse_rms[index, :, lanes] = inverse_rms
      outputs.logits[index, :, lanes] = logit
      logits.append(logit)
    top = over_slots(jnp.maximum, logits)
    total = over_slots(jnp.add, [jnp.exp(logit - top) for logit in logits])
    lse = top + jnp.log(total)
    outputs.lse[index] = lse
    return [jnp.exp(logit - lse) for logit in logits]

  def _mix(self, weights: list[Array], rows: Span) -> None:
    """Writes h_s = Σ_n P_sn v_n of a group of tokens."""
    plan, slots, out = self.plan, self.inputs.slots, self.outputs.out
    diagonal, dtype = plan.diagonal(), plan.compute_dtype
    spread = [plan.block_diagonal(p, diagonal).astype(dtype) for p in weights]

    def chunk(lanes: Span, _: None) -> None:
      parts = (matmul(p, plan.slots_chunk(slots, n, rows, lanes)) for n, p in enumerate(spread))
      mixed = functools.reduce(jnp.add, parts)
      for s in range(plan.num_reads):
        out[s, rows, lanes] = mixed[s * ROWS : (s + 1) * ROWS].astype(out.dtype)

    plan.for_each_chunk(chunk)
