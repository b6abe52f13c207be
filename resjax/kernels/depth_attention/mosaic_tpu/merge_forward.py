"""The forward kernel of the merge for TPUs: residual add, merge and norm in one pass."""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.mosaic_tpu import walks
from resjax.kernels.depth_attention.mosaic_tpu.merge_plan import (
  TOKENS,
  WORD,
  MergePlan,
  collect_scalars,
  load,
  put_scalars,
  share,
  spread_scalars,
  sum_lanes,
  zeros,
)
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS, SUBLANES
from resjax.kernels.depth_attention.operands import Read
from resjax.kernels.depth_attention.two_phase_operands import MergeOperands, MergeStats
from resjax.typing import Array


class _Inputs(NamedTuple):
  """Arrays, their specs, or references to tiles of them."""

  out: Any
  lse: Any
  running: Any
  query: Any
  addend: Any
  gain: Any


class _Outputs(NamedTuple):
  out: Any
  numbers: Any
  running: Any
  words: Any


class _Scratch(NamedTuple):
  lse: Any
  numbers: Any
  mixed: Any


def forward(
  read: Read, operands: MergeOperands, plan: MergePlan
) -> tuple[Array, Array | None, MergeStats]:
  """Runs the kernel on the rows of one device; see reference/merge.py."""
  gain = plan.rows_of(plan.gain(operands.out_norm_scale)) if plan.normed else None
  lse = lax.dynamic_index_in_dim(operands.lse, operands.counts[1], keepdims=False)
  lse, query = plan.pad(lse), plan.rows_of(operands.query)
  inputs = _Inputs(operands.out, lse, operands.running, query, operands.addend, gain)
  tokens, row = plan.tokens_spec(), plan.row_spec()
  in_specs = _Inputs(
    plan.read_spec(), plan.scalars_spec(1), tokens, row,
    tokens if plan.adds else None, row if plan.normed else None,
  )  # fmt: skip
  call = pl.pallas_call(
    partial(_kernel, plan),
    out_shape=(
      _Outputs(
        plan.array(), plan.scalars(SUBLANES), plan.array() if plan.adds else None, plan.words()
      ),
    ),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=plan.grid,
      in_specs=(in_specs,),
      out_specs=(
        _Outputs(
          tokens, plan.scalars_spec(SUBLANES), tokens if plan.adds else None, plan.words_spec()
        ),
      ),
      scratch_shapes=[
        pltpu.VMEM((1, TOKENS, LANES), jnp.float32),
        pltpu.VMEM((TOKENS, LANES), jnp.float32),
        pltpu.VMEM((ROWS, plan.width), jnp.float32),
      ],
    ),
    compiler_params=plan.compiler_params(),
    cost_estimate=plan.cost(arrays=5 if plan.adds else 3, flops=13),
    interpret=read.interpret,
    name="depth_attention_merge_forward",
  )
  (got,) = call(operands.counts, inputs)
  numbers = got.numbers[:, : plan.num_tokens]
  stats = MergeStats(*numbers[:3], numbers[3] if plan.normed else None, got.words)
  return got.out, got.running, stats


def _kernel(plan: MergePlan, valid, inputs: _Inputs, outputs: _Outputs, *scratch):
  scratch, counts = _Scratch(*scratch), valid[0] > 0
  spread_scalars(inputs.lse, scratch.lse)

  def run(_, rows):
    squares, dots = _sums(plan, counts, inputs, outputs, rows)
    inverse_rms = lax.rsqrt(squares / plan.width + plan.eps)
    logit = dots * inverse_rms
    log_odds = jnp.where(counts, logit - scratch.lse[0, rows, :], -jnp.inf)
    running = outputs.running if plan.adds else inputs.running
    total = _mix(plan, counts, inputs.out, running, log_odds, scratch.mixed, rows)
    out_inverse_rms = lax.rsqrt(total / plan.width + plan.eps)
    put_scalars(scratch.numbers, rows, [inverse_rms, logit, log_odds, out_inverse_rms])
    _write(plan, scratch.mixed, inputs.gain, out_inverse_rms, outputs, rows)

  walks.for_each_row_group(TOKENS, run)
  collect_scalars(scratch.numbers, outputs.numbers)


def _sums(plan: MergePlan, counts, inputs: _Inputs, outputs: _Outputs, rows):
  """Writes the new running sum u; returns |u|² and g · u, zero where it does not count."""

  def chunk(lanes, sums):
    squares, dots = sums
    u = load(inputs.running, rows, lanes)
    if plan.adds:
      total = (u + load(inputs.addend, rows, lanes)).astype(plan.dtype)
      outputs.running[rows, lanes] = total
      u = total.astype(jnp.float32)
    u = jnp.where(counts, u, 0)
    return squares + u * u, dots + u * inputs.query[:, lanes]

  return map(sum_lanes, plan.for_each_chunk(chunk, (zeros(), zeros())))


def _mix(plan: MergePlan, counts, out, running, log_odds, mixed, rows) -> Array:
  """Writes h = (1 − β) out + β u; returns |h|²."""
  rest, part = share(-log_odds), share(log_odds)

  def chunk(lanes, squares):
    u = jnp.where(counts, load(running, rows, lanes), 0)
    h = rest * load(out, rows, lanes) + part * u
    mixed[:, lanes] = h
    return squares + h * h

  return sum_lanes(plan.for_each_chunk(chunk, zeros()))


def _write(plan: MergePlan, mixed, gain, inverse_rms, outputs: _Outputs, rows) -> None:
  """Writes h, normalised if there is a gain, and what rounding takes from it."""

  def run(word, chunks, _):
    steps = []
    for lanes in chunks:
      h = mixed[:, lanes]
      h = h if gain is None else h * inverse_rms * gain[:, lanes]
      rounded = h.astype(plan.dtype)
      outputs.out[rows, lanes] = rounded
      if outputs.words is not None:
        steps.append(bf16_remainder.lost(h, rounded.astype(jnp.float32)))
    if steps:
      outputs.words[rows, word] = bf16_remainder.pack(steps, WORD)

  plan.for_each_word(run)
