"""The forward kernel of the merge for TPUs: residual add, merge and norm in one kernel."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.mosaic_tpu import merge_plan as steps
from resjax.kernels.depth_attention.mosaic_tpu.merge_plan import TOKENS, WORD, MergePlan
from resjax.kernels.depth_attention.operands import MergeOperands, MergeStats, Read, share
from resjax.kernels.mosaic_tpu import ROWS, SUBLANES, Span, call, for_each_row_group
from resjax.kernels.operation import LANES, Field, Ref


class _Inputs(NamedTuple):
  out: Field
  lse: Field
  running: Field
  query: Field
  addend: Field
  gain: Field


class _Outputs(NamedTuple):
  out: Field
  numbers: Field
  running: Field
  words: Field


class _Scratch(NamedTuple):
  """Buffers in VMEM.

  Attributes:
    lse: [1, TOKENS, LANES].
    numbers: [TOKENS, LANES], one lane per kind of number.
    mixed: [ROWS, D].
  """

  lse: Ref
  numbers: Ref
  mixed: Ref


@call.on_one_device
def forward(read: Read, operands: MergeOperands) -> tuple[Array, Array | None, MergeStats]:
  """Runs the forward pass, see reference/merge.py."""
  plan = MergePlan.of(read, operands)
  gain = plan.row(plan.gain(operands.out_norm_scale))
  lse = lax.dynamic_index_in_dim(operands.lse, operands.counts[1], keepdims=False)
  written = call.launch(
    read,
    _Kernel,
    plan,
    "depth_attention_merge_forward",
    operands.counts,
    inputs=_Inputs(
      call.Tiled(operands.out, plan.read_spec()),
      plan.scalars(1, plan.pad(lse)),
      plan.tokens(operands.running),
      plan.row(operands.query),
      plan.tokens(operands.addend) if plan.adds else None,
      gain,
    ),
    outputs=_Outputs(
      plan.tokens(),
      plan.scalars(SUBLANES),
      plan.tokens() if plan.adds else None,
      plan.words(),
    ),
    cost=plan.cost(arrays=5 if plan.adds else 3, flops=13),
    scratch=_Scratch(
      pltpu.VMEM((1, TOKENS, LANES), jnp.float32),
      pltpu.VMEM((TOKENS, LANES), jnp.float32),
      pltpu.VMEM((ROWS, plan.width), jnp.float32),
    ),
  )
  inverse_rms, logit, log_odds, out_inverse_rms = written.numbers[:4, : plan.num_tokens]
  out_inverse_rms = out_inverse_rms if plan.normed else None
  stats = MergeStats(inverse_rms, logit, log_odds, out_inverse_rms, written.words)
  return written.out, written.running, stats


class _Kernel(call.TileKernel[MergePlan, _Inputs, _Outputs, _Scratch]):
  def run(self) -> None:
    """Merges a tile, one group of tokens at a time."""
    plan, scratch, valid = self.plan, self.scratch, self.counts[0] > 0
    steps.spread_scalars(self.inputs.lse, scratch.lse)

    def run(_: Array, rows: Span) -> None:
      squares, dots = self._sums(valid, rows)
      inverse_rms = lax.rsqrt(squares / plan.width + plan.eps)
      logit = dots * inverse_rms
      log_odds = jnp.where(valid, logit - scratch.lse[0, rows, :], -jnp.inf)
      out_inverse_rms = lax.rsqrt(self._mix(valid, log_odds, rows) / plan.width + plan.out_norm_eps)
      steps.put_scalars(scratch.numbers, rows, [inverse_rms, logit, log_odds, out_inverse_rms])
      self._write(out_inverse_rms, rows)

    for_each_row_group(TOKENS, run)
    steps.collect_scalars(scratch.numbers, self.outputs.numbers)

  def _sums(self, valid: Array, rows: Span) -> tuple[Array, Array]:
    """Writes the running sum u with the addend; returns |u|² and g · u, 0 if u does not count."""
    plan, inputs = self.plan, self.inputs

    def chunk(lanes: Span, sums: tuple[Array, Array]) -> tuple[Array, Array]:
      squares, dots = sums
      u = steps.load(inputs.running, rows, lanes)
      if plan.adds:
        total = (u + steps.load(inputs.addend, rows, lanes)).astype(plan.dtype)
        self.outputs.running[rows, lanes] = total
        u = total.astype(jnp.float32)
      u = jnp.where(valid, u, 0)
      return squares + u * u, dots + u * inputs.query[:, lanes]

    squares, dots = plan.for_each_chunk(chunk, (steps.zeros(), steps.zeros()))
    return steps.sum_lanes(squares), steps.sum_lanes(dots)

  def _mix(self, valid: Array, log_odds: Array, rows: Span) -> Array:
    """Writes h = (1 − β) out + β u; returns |h|²."""
    running = self.outputs.running if self.plan.adds else self.inputs.running
    rest, beta = share(-log_odds), share(log_odds)

    def chunk(lanes: Span, squares: Array) -> Array:
      u = jnp.where(valid, steps.load(running, rows, lanes), 0)
      h = rest * steps.load(self.inputs.out, rows, lanes) + beta * u
      self.scratch.mixed[:, lanes] = h
      return squares + h * h

    return steps.sum_lanes(self.plan.for_each_chunk(chunk, steps.zeros()))

  def _write(self, inverse_rms: Array, rows: Span) -> None:
    """Writes h, normalised if there is a gain, and what rounding takes from it."""
    gain, out, words = self.inputs.gain, self.outputs.out, self.outputs.words

    def run(word: Span, chunks: list[Span], _: None) -> None:
      remainders = []
      for lanes in chunks:
        h = self.scratch.mixed[:, lanes]
        h = h if gain is None else h * inverse_rms * gain[:, lanes]
        rounded = h.astype(self.plan.dtype)
        out[rows, lanes] = rounded
        if words is not None:
          remainders.append(bf16_remainder.remainder(h, rounded.astype(jnp.float32)))
      if remainders:
        words[rows, word] = bf16_remainder.pack(remainders, WORD)

    self.plan.for_each_word(run)
