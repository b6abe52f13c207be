"""The reverse kernel of the merge for TPUs, which does not read the result of phase 1.

Two cotangents are changed in place: this merge adds to the cotangent of the running sum, and
overwrites one row of the cotangent of phase 1's outputs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.mosaic_tpu import merge_plan as steps
from resjax.kernels.depth_attention.mosaic_tpu.merge_plan import TOKENS, MergePlan
from resjax.kernels.depth_attention.operands import (
  MergeCotangents,
  MergeOperands,
  MergeStats,
  Read,
  share,
)
from resjax.kernels.mosaic_tpu import SUBLANES, Span, call, clear_rows_from, for_each_row_group
from resjax.kernels.operation import LANES, Field, Ref


class _Inputs(NamedTuple):
  """What the kernel reads; `inverse_gain` is 1 / gain."""

  d_running: Field
  d_reads: Field
  d_out: Field
  out: Field
  running: Field
  words: Field
  numbers: Field
  query: Field
  gain: Field
  inverse_gain: Field


class _Outputs(NamedTuple):
  running: Field
  out: Field
  lse: Field
  query: Field
  gain: Field


class _Scratch(NamedTuple):
  """Buffers in VMEM.

  Attributes:
    numbers: [kinds of numbers, TOKENS, LANES].
    d_lse: [TOKENS, LANES], the first lane of which is used.
  """

  numbers: Ref
  d_lse: Ref


class _Factors(NamedTuple):
  """Numbers of a group of tokens that make up their cotangents, each [ROWS, LANES].

  γ is the output gain and ρ = 1 / RMS(h); both are 1 without a norm.

  Attributes:
    along: mean(dy ⊙ y).
    rest: (1 − β) ρ, the factor of γ ⊙ dy − along RMS(h), without a norm of dy, in the cotangent of
      phase 1.
    share: β ρ, the factor of the same in the cotangent of the running sum.
    d_dot: ds r, the cotangent of ⟨u, query⟩.
    shrink: ds s r² / D, the factor of −u in the cotangent of the running sum.
  """

  along: Array
  rest: Array
  share: Array
  d_dot: Array
  shrink: Array


@call.on_one_device
def backward(
  read: Read, operands: MergeOperands, out: Array, stats: MergeStats,
  d_out: Array, d_running: Array, d_reads: tuple[Array, Array],
) -> MergeCotangents:  # fmt: skip
  """Runs the reverse pass, see reference/merge.py."""
  plan = MergePlan.of(read, operands)
  gain = plan.gain(operands.out_norm_scale)
  gains = plan.row(gain), plan.row(None if gain is None else 1 / gain)
  numbers = plan.pad(*[x for x in stats[:-1] if x is not None])
  d_first, d_lse = d_reads
  # The rows that the kernel does not write must keep their place in memory, in whole tiles.
  past_end = -plan.num_tokens % TOKENS
  d_first = jnp.pad(d_first, ((0, 0), (0, past_end), (0, 0))) if past_end else d_first
  # The interpreter returns too many rows of what is updated if the last tile is partly empty.
  running = () if read.interpret and past_end else (("d_running", "running"),)
  written = call.launch(
    read,
    _Kernel,
    plan,
    "depth_attention_merge_backward",
    operands.counts,
    inputs=_Inputs(
      plan.tokens(d_running),
      call.in_memory(d_first),
      plan.tokens(d_out),
      plan.tokens(out),
      plan.tokens(operands.running),
      plan.words(stats.remainder),
      plan.scalars(len(numbers), numbers),
      plan.row(operands.query),
      *gains,
    ),
    outputs=_Outputs(
      plan.tokens(),
      call.Tiled(jax.ShapeDtypeStruct(d_first.shape, d_first.dtype), plan.read_spec()),
      plan.scalars(1),
      plan.sums(),
      plan.sums() if plan.normed else None,
    ),
    cost=plan.cost(arrays=6, flops=30),
    scratch=_Scratch(
      pltpu.VMEM((len(numbers), TOKENS, LANES), jnp.float32),
      pltpu.VMEM((TOKENS, LANES), jnp.float32),
    ),
    updates=(*running, ("d_reads", "out")),
  )
  d_gain = jnp.sum(written.gain, axis=(0, 1)) if plan.normed else None
  d_query = jnp.sum(written.query, axis=(0, 1))
  d_first = written.out[:, : plan.num_tokens]
  d_lse = lax.dynamic_update_index_in_dim(
    d_lse, written.lse[0, : plan.num_tokens], operands.counts[1], 0
  )
  return MergeCotangents(d_first, d_lse, written.running, d_query, d_gain)


class _Kernel(call.TileKernel[MergePlan, _Inputs, _Outputs, _Scratch]):
  def run(self) -> None:
    """Writes the cotangents of a tile, one group of tokens at a time."""
    plan, inputs, outputs = self.plan, self.inputs, self.outputs
    part, step = pl.program_id(0), pl.program_id(1)
    valid = self.counts[0] > 0
    steps.spread_scalars(inputs.numbers, self.scratch.numbers)
    sums = [ref for ref in (outputs.query, outputs.gain) if ref is not None]

    @pl.when(step == 0)
    def _() -> None:
      for ref in sums:
        ref[...] = jnp.zeros_like(ref)

    rest = plan.num_tokens % TOKENS
    if rest:

      @pl.when(plan.tile(part, step) == plan.num_tiles - 1)
      def _() -> None:
        for ref in (inputs.d_out, inputs.out, inputs.running, inputs.words):
          if ref is not None:
            clear_rows_from(ref, rest)

    def run(_: Array, rows: Span) -> None:
      factors, d_logit = self._factors(valid, rows)
      steps.put_scalars(self.scratch.d_lse, rows, [-d_logit])
      self._write(valid, factors, rows)

    for_each_row_group(TOKENS, run)
    steps.collect_scalars(self.scratch.d_lse, outputs.lse)

  def _factors(self, valid: Array, rows: Span) -> tuple[_Factors, Array]:
    """Returns the factors of a group of tokens, and the cotangents of the running sum's logits."""
    plan, inputs, numbers = self.plan, self.inputs, self.scratch.numbers
    inverse_rms, logit, log_odds = (numbers[index, rows, :] for index in range(3))
    beta, rest = share(log_odds), share(-log_odds)

    def run(word: Span, chunks: list[Span], sums: tuple) -> tuple:
      for lanes, out in self._outs(rows, word, chunks):
        along, first, second = sums
        u = jnp.where(valid, steps.load(inputs.running, rows, lanes), 0)
        d_out = steps.load(inputs.d_out, rows, lanes)
        along += d_out * out
        if plan.normed:
          first += inputs.gain[:, lanes] * d_out * u
          second += out * inputs.inverse_gain[:, lanes] * u
        else:
          first += d_out * u
        sums = along, first, second
      return sums

    along, first, second = map(steps.sum_lanes, plan.for_each_word(run, (steps.zeros(),) * 3))
    if plan.normed:
      along, scale = along / plan.width, numbers[3, rows, :]
      d_logit = (
        scale * (first - along * second) - plan.width * along * plan.out_norm_eps * scale * scale
      )
      d_logit = beta * d_logit
      beta, rest = beta * scale, rest * scale
    else:
      d_logit = beta * (first - along)
    d_dot = d_logit * inverse_rms
    shrink = d_dot * inverse_rms * logit / plan.width
    return _Factors(along, rest, beta, d_dot, shrink), d_logit

  def _write(self, valid: Array, factors: _Factors, rows: Span) -> None:
    """Writes the cotangents of a group of tokens; adds to the cotangents of query and gain."""
    inputs, outputs = self.inputs, self.outputs

    def run(word: Span, chunks: list[Span], _: None) -> None:
      for lanes, out in self._outs(rows, word, chunks):
        u = jnp.where(valid, steps.load(inputs.running, rows, lanes), 0)
        d_mixed = steps.load(inputs.d_out, rows, lanes)
        if self.plan.normed:
          normed = out * inputs.inverse_gain[:, lanes]
          outputs.gain[:, lanes] += _fold(d_mixed * normed)
          d_mixed = inputs.gain[:, lanes] * d_mixed - factors.along * normed
        outputs.out[rows, lanes] = (factors.rest * d_mixed).astype(outputs.out.dtype)
        d_running = steps.load(inputs.d_running, rows, lanes) + factors.share * d_mixed
        d_running += factors.d_dot * inputs.query[:, lanes] - factors.shrink * u
        outputs.running[rows, lanes] = d_running.astype(outputs.running.dtype)
        outputs.query[:, lanes] += _fold(factors.d_dot * u)

    self.plan.for_each_word(run)

  def _outs(self, rows: Span, word: Span, chunks: list[Span]) -> Iterator[tuple[Span, Array]]:
    """Yields lanes and output, before it was rounded, of each of the chunks that share words."""
    words = self.inputs.words
    words = None if words is None else words[rows, word].astype(jnp.int32)
    for index, lanes in enumerate(chunks):
      out = steps.load(self.inputs.out, rows, lanes)
      yield lanes, out if words is None else bf16_remainder.restore(out, words, index)


def _fold(x: Array) -> Array:
  return x[:SUBLANES] + x[SUBLANES:]
