"""Forward pass of depth attention on NVIDIA GPUs: each source is read once, and none is kept."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from resjax.kernels.depth_attention import gpu_call, gpu_tiles
from resjax.kernels.depth_attention.gpu_ring import Ring, Segment, load_row, zero_row
from resjax.kernels.depth_attention.operands import Operands, Read, Stats
from resjax.typing import Array


class Outputs(NamedTuple):
  """What the kernel writes, rows [T, D / 128, 128]."""

  out: Array
  running: Array | None
  stats: Stats


class Mix(NamedTuple):
  """A softmax-weighted sum that grows source by source.

  Attributes:
    peak: largest logit so far.
    total: Σ_n exp(logit_n − peak).
    mixed: Σ_n exp(logit_n − peak) v_n [D / 128, 128].
  """

  peak: Array
  total: Array
  mixed: Array


def forward(read: Read, operands: Operands) -> tuple[Array, Array | None, Stats]:
  """Reads; see `depth_attention` for the equations, `reference.forward` for the interface."""
  folded = gpu_call.fold(operands._replace(counts=None))._replace(counts=operands.counts)
  like, num_slots = folded.like, operands.num_slots
  row = jax.ShapeDtypeStruct(like.shape, like.dtype)
  per_slot = jax.ShapeDtypeStruct((num_slots, len(like)), jnp.float32)
  per_token = jax.ShapeDtypeStruct((len(like),), jnp.float32)
  outputs = Outputs(row, row if read.adds else None, Stats(per_slot, per_slot, per_token))
  tiles = gpu_tiles.choose_forward(operands.like)
  programs = gpu_call.num_programs(read, len(like), tiles)
  kernel = functools.partial(_kernel, read, programs)
  result = gpu_call.launch(read, kernel, folded, outputs, tiles=tiles, programs=programs, like=like)
  return *gpu_call.unfold((result.out, result.running)), result.stats


def _kernel(read: Read, programs: int, operands: Operands, outputs: Outputs, rows, barriers):
  segments = gpu_call.source_segments(operands, all_recent=read.adds)
  if read.adds:
    segments += (Segment(operands.addend),)
  tokens, groups, _ = operands.like.shape
  ring = gpu_call.make_ring(rows, barriers, segments, tokens, programs)
  ring.start()
  query = load_row(operands.query)
  scale = None if operands.out_norm_scale is None else load_row(operands.out_norm_scale)

  def read_token(step, _):
    token = ring.token(step)
    take = functools.partial(_take, read, operands, outputs, ring, step)

    def add(slot, mix):
      x = take(slot)
      inverse_rms = lax.rsqrt(_mean_square(x) + read.eps)
      logit = jnp.sum(x * query) * inverse_rms
      outputs.stats.inverse_rms[slot, token] = inverse_rms
      outputs.stats.logits[slot, token] = logit
      return _add(mix, logit, x)

    def skip(slot):
      if read.adds and _is_last(operands, slot):
        take(slot)
      else:
        ring.release(step, slot)
      outputs.stats.inverse_rms[slot, token] = jnp.float32(0.0)
      outputs.stats.logits[slot, token] = jnp.float32(-jnp.inf)

    empty = Mix(jnp.float32(-jnp.inf), jnp.float32(0.0), zero_row(groups))
    mix = gpu_call.each_source(operands, add, skip, empty)
    outputs.stats.lse[token] = mix.peak + jnp.log(mix.total)
    out = mix.mixed / mix.total
    if scale is not None:
      out = out * lax.rsqrt(_mean_square(out) + read.eps) * scale
    outputs.out[token] = out.astype(outputs.out.dtype)

  lax.fori_loop(jnp.int32(0), ring.steps, read_token, None)


def _take(read: Read, operands: Operands, outputs: Outputs, ring: Ring, step, slot) -> Array:
  """Takes a source out of the ring, the last one with the addend in it."""
  ring.wait(step, slot)
  x = ring.load(step, slot)
  if read.adds and _is_last(operands, slot):
    ring.wait(step, slot + 1)
    x = (x + ring.load(step, slot + 1)).astype(outputs.running.dtype)
    outputs.running[ring.token(step)] = x
    x = x.astype(jnp.float32)
    ring.release(step, slot + 1)
  ring.release(step, slot)
  return x


def _is_last(operands: Operands, slot: Array | int) -> bool:
  return isinstance(slot, int) and slot == operands.num_slots - 1


def _add(mix: Mix, logit: Array, x: Array) -> Mix:
  """Adds a source; what is there shrinks where the logit is a new peak."""
  peak = jnp.maximum(mix.peak, logit)
  shrink, weight = jnp.exp(mix.peak - peak), jnp.exp(logit - peak)
  return Mix(peak, shrink * mix.total + weight, shrink * mix.mixed + weight * x)


def _mean_square(x: Array) -> Array:
  return jnp.sum(x * x) / x.size
