"""The reverse kernel of the merge for TPUs: reads nothing of phase 1."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.mosaic_tpu import walks
from resjax.kernels.depth_attention.mosaic_tpu.merge_plan import (
  TOKENS,
  MergePlan,
  collect_scalars,
  load,
  put_scalars,
  share,
  spread_scalars,
  sum_lanes,
  zeros,
)
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, SUBLANES
from resjax.kernels.depth_attention.operands import Read
from resjax.kernels.depth_attention.two_phase_operands import (
  MergeCotangents,
  MergeOperands,
  MergeStats,
)
from resjax.typing import Array


class _Inputs(NamedTuple):
  """Arrays, their specs, or references to tiles of them; `inverse_gain` is 1 / gain."""

  d_running: Any
  d_reads: Any
  d_out: Any
  out: Any
  running: Any
  words: Any
  numbers: Any
  query: Any
  gain: Any
  inverse_gain: Any


class _Outputs(NamedTuple):
  running: Any
  out: Any
  lse: Any
  query: Any
  gain: Any


class _Factors(NamedTuple):
  """Numbers per token [ROWS, LANES]."""

  along: Array  # mean(dy ⊙ y)
  rest: Array  # 1 − β, times the inverse RMS of h
  share: Array  # β, times that
  d_dot: Array  # ds r
  shrink: Array  # ds s r² / D


def backward(
  read: Read,
  operands: MergeOperands,
  plan: MergePlan,
  out: Array,
  stats: MergeStats,
  d_out: Array,
  d_running: Array,
  d_reads: tuple[Array, Array],
) -> MergeCotangents:
  """Runs the kernel on the rows of one device; see reference/merge.py."""
  gain = plan.gain(operands.out_norm_scale) if plan.normed else None
  gains = (plan.rows_of(gain), plan.rows_of(1 / gain)) if plan.normed else (None, None)
  numbers = plan.pad(*[x for x in stats[:-1] if x is not None])
  query = plan.rows_of(operands.query)
  d_first, d_lse = d_reads
  # What the kernel leaves as it is consists of whole tiles.
  past_end = -plan.num_tokens % TOKENS
  d_first = jnp.pad(d_first, ((0, 0), (0, past_end), (0, 0))) if past_end else d_first
  inputs = _Inputs(
    d_running, d_first, d_out, out, operands.running, stats.low_bits, numbers, query, *gains
  )
  tokens, row, total = plan.tokens_spec(), plan.row_spec(), plan.sum_spec()
  gain_specs = (row, row) if plan.normed else (None, None)
  rows = len(numbers)
  call = pl.pallas_call(
    partial(_kernel, plan),
    out_shape=(
      _Outputs(
        plan.array(), jax.ShapeDtypeStruct(d_first.shape, d_first.dtype), plan.scalars(1),
        plan.sums(),
        plan.sums() if plan.normed else None,
      ),
    ),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=plan.grid,
      in_specs=(
        _Inputs(
          tokens, pl.BlockSpec(memory_space=pl.ANY), *[tokens] * 3, plan.words_spec(),
          plan.scalars_spec(rows), row, *gain_specs,
        ),
      ),
      out_specs=(
        _Outputs(
          tokens, plan.read_spec(), plan.scalars_spec(1), total, total if plan.normed else None
        ),
      ),
      scratch_shapes=[
        pltpu.VMEM((rows, TOKENS, LANES), jnp.float32),
        pltpu.VMEM((TOKENS, LANES), jnp.float32),
      ],
    ),
    compiler_params=plan.compiler_params(),
    cost_estimate=plan.cost(arrays=6, flops=30),
    input_output_aliases=_aliases(read, plan),
    interpret=read.interpret,
    name="depth_attention_merge_backward",
  )  # fmt: skip
  (got,) = call(operands.counts, inputs)
  d_gain = jnp.sum(got.gain, axis=(0, 1)) if plan.normed else None
  d_query = jnp.sum(got.query, axis=(0, 1))
  d_first = got.out[:, : plan.num_tokens]
  d_lse = lax.dynamic_update_index_in_dim(
    d_lse, got.lse[0, : plan.num_tokens], operands.counts[1], 0
  )
  return MergeCotangents(d_first, d_lse, got.running, d_query, d_gain)


def _aliases(read: Read, plan: MergePlan) -> dict[int, int]:
  """Turns cotangents of the running sum and of phase 1, behind the counts, into the new ones."""
  # The interpreter returns what is aliased with the rows past the end of the last tile.
  running = {} if read.interpret and plan.num_tokens % TOKENS else {1: 0}
  return running | {2: 1}


def _kernel(plan: MergePlan, valid, inputs: _Inputs, outputs: _Outputs, numbers, d_lse):
  part, step = pl.program_id(0), pl.program_id(1)
  counts = valid[0] > 0
  spread_scalars(inputs.numbers, numbers)
  sums = [ref for ref in (outputs.query, outputs.gain) if ref is not None]

  @pl.when(step == 0)
  def _():
    for ref in sums:
      ref[...] = jnp.zeros_like(ref)

  rest = plan.num_tokens % TOKENS
  if rest:

    @pl.when(plan.tile(part, step) == plan.num_tiles - 1)
    def _():
      for ref in (inputs.d_out, inputs.out, inputs.running, inputs.words):
        if ref is not None:
          walks.clear_rows_from(ref, rest)

  def run(_, rows):
    factors, d_logit = _factors(plan, counts, inputs, numbers, rows)
    put_scalars(d_lse, rows, [-d_logit])
    _write(plan, counts, inputs, outputs, factors, rows)

  walks.for_each_row_group(TOKENS, run)
  collect_scalars(d_lse, outputs.lse)


def _factors(plan: MergePlan, counts, inputs: _Inputs, numbers, rows) -> tuple[_Factors, Array]:
  """Returns the factors of a group of tokens, and the cotangent of their logit."""
  inverse_rms, logit, log_odds = (numbers[index, rows, :] for index in range(3))
  part, rest = share(log_odds), share(-log_odds)

  def run(word, chunks, sums):
    for lanes, out in _outs(inputs, rows, word, chunks):
      along, first, second = sums
      u = jnp.where(counts, load(inputs.running, rows, lanes), 0)
      d_out = load(inputs.d_out, rows, lanes)
      along += d_out * out
      if plan.normed:
        first += inputs.gain[:, lanes] * d_out * u
        second += out * inputs.inverse_gain[:, lanes] * u
      else:
        first += d_out * u
      sums = along, first, second
    return sums

  along, first, second = map(sum_lanes, plan.for_each_word(run, (zeros(),) * 3))
  if plan.normed:
    along, scale = along / plan.width, numbers[3, rows, :]
    d_logit = scale * (first - along * second) - plan.width * along * plan.eps * scale * scale
    d_logit = part * d_logit
    part, rest = part * scale, rest * scale
  else:
    d_logit = part * (first - along)
  d_dot = d_logit * inverse_rms
  shrink = d_dot * inverse_rms * logit / plan.width
  return _Factors(along, rest, part, d_dot, shrink), d_logit


def _write(plan: MergePlan, counts, inputs: _Inputs, outputs: _Outputs, f: _Factors, rows) -> None:
  """Writes the cotangents of a group of tokens; adds to those of query and gain."""

  def run(word, chunks, _):
    for lanes, out in _outs(inputs, rows, word, chunks):
      u = jnp.where(counts, load(inputs.running, rows, lanes), 0)
      d_mixed = load(inputs.d_out, rows, lanes)
      if plan.normed:
        normed = out * inputs.inverse_gain[:, lanes]
        outputs.gain[:, lanes] += _fold(d_mixed * normed)
        d_mixed = inputs.gain[:, lanes] * d_mixed - f.along * normed
      outputs.out[rows, lanes] = (f.rest * d_mixed).astype(outputs.out.dtype)
      d_running = load(inputs.d_running, rows, lanes) + f.share * d_mixed
      d_running += f.d_dot * inputs.query[:, lanes] - f.shrink * u
      outputs.running[rows, lanes] = d_running.astype(outputs.running.dtype)
      outputs.query[:, lanes] += _fold(f.d_dot * u)

  plan.for_each_word(run)


def _outs(inputs: _Inputs, rows, word, chunks) -> Iterator[tuple[Any, Array]]:
  """Yields lanes and output of each chunk that shares a word, before its rounding."""
  words = None if inputs.words is None else inputs.words[rows, word].astype(jnp.int32)
  for index, lanes in enumerate(chunks):
    out = load(inputs.out, rows, lanes)
    yield lanes, out if words is None else bf16_remainder.restore(out, words, index)


def _fold(x: Array) -> Array:
  """Adds the rows of a chunk to SUBLANES of them."""
  return x[:SUBLANES] + x[SUBLANES:]
