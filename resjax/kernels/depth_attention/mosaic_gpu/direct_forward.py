"""Forward pass of depth attention on NVIDIA GPUs: each source is read once, and few are kept."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from resjax.kernels.depth_attention.mosaic_gpu import call, row_ops
from resjax.kernels.depth_attention.mosaic_gpu import tiles as gpu_tiles
from resjax.kernels.depth_attention.mosaic_gpu.call import Shared, row_of
from resjax.kernels.depth_attention.mosaic_gpu.ring import Ring, Stream, when
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import Row, Sums, each
from resjax.kernels.depth_attention.operands import Operands, Read, Stats
from resjax.typing import Array

# Registers of a thread for sources between the two times that they are used.
_HELD_REGISTERS = 64


class Outputs(NamedTuple):
  """What the kernel writes, rows [T, D / 128, 128]."""

  out: Array
  running: Array | None
  stats: Stats


class Mix(NamedTuple):
  """A softmax-weighted sum that grows with the sources.

  Attributes:
    peak: largest logit so far.
    total: Σ_n exp(logit_n − peak).
    mixed: Σ_n exp(logit_n − peak) v_n.
  """

  peak: Array
  total: Array
  mixed: Row


def forward(read: Read, operands: Operands) -> tuple[Array, Array | None, Stats]:
  """Reads; see `depth_attention` for the equations, `reference.forward` for the interface."""
  folded = call.fold_operands(operands)
  like = folded.like
  row = jax.ShapeDtypeStruct(like.shape, like.dtype)
  per_slot = jax.ShapeDtypeStruct((operands.num_slots, len(like)), jnp.float32)
  per_token = jax.ShapeDtypeStruct((len(like),), jnp.float32)
  outputs = Outputs(row, row if read.adds else None, Stats(per_slot, per_slot, per_token))
  tiles = gpu_tiles.choose_forward(operands.like, operands.num_slots)
  programs = call.num_programs(read, len(like), tiles)
  kernel = functools.partial(_kernel, read, tiles.group, programs)
  result, _ = call.launch(
    read,
    kernel,
    folded,
    outputs,
    tiles=tiles,
    programs=programs,
    like=like,
    name="depth_attention_forward",
  )
  return *call.unfold((result.out, result.running)), result.stats


def _kernel(
  read: Read, group: int, programs: int, operands: Operands, outputs: Outputs, _, shared: Shared
):
  (buffer,), sums, _ = shared
  streams = call.source_streams(operands)
  if read.adds:  # the last source is needed even if it does not count
    addend = Stream(functools.partial(row_of, None, (operands.addend,), 0))
    streams = (*streams[:-1], Stream(streams[-1].row), addend)
  tokens, groups, _ = operands.like.shape
  ring = call.make_ring(buffer, streams, tokens, programs)
  query = row_ops.load(operands.query)

  def read_token(step, _):
    token = ring.token(step)
    mix = Mix(jnp.float32(-jnp.inf), jnp.float32(0.0), row_ops.zeros(groups))
    for start in range(0, operands.num_slots, group):
      slots = range(start, min(start + group, operands.num_slots))
      if read.adds and slots[-1] == operands.num_slots - 1:
        _join(operands, outputs, ring, step)
      logits, held = _score(read, operands, outputs, ring, sums, query, step, slots)
      mix = _add(mix, operands, ring, step, slots, logits, held)
      released = len(streams) if slots[-1] == operands.num_slots - 1 else slots.stop
      ring.release(step, range(start, released))
    outputs.stats.lse[token] = mix.peak + jnp.log(mix.total)
    out = each(lambda x: x / mix.total, mix.mixed)
    if operands.out_norm_scale is not None:
      out = _norm(read, operands, sums, out)
    row_ops.store(outputs.out.at[token], out)

  lax.fori_loop(jnp.int32(0), ring.steps, read_token, None)


def _valid(operands: Operands, slot: int) -> Array | None:
  return call.source_streams(operands)[slot].valid


def _join(operands: Operands, outputs: Outputs, ring: Ring, step: Array) -> None:
  """Adds the addend to the last source, in the ring and in global memory."""
  last = operands.num_slots - 1
  ring.wait(step, last)
  ring.wait(step, last + 1)
  running = each(jnp.add, ring.load(step, last), ring.load(step, last + 1))
  ring.store(step, last, running)
  row_ops.store(outputs.running.at[ring.token(step)], running)


def _score(
  read, operands, outputs: Outputs, ring: Ring, sums: Sums, query: Row, step, slots: range
):
  """Returns the logits of some slots, and writes them and the inverse RMS.

  Also returns the sources, slot -> row, that need not be read from shared memory again: where
  registers hold them all, those that surely count.
  """
  count, token, logits, held = len(slots), ring.token(step), [], {}
  holds = count * operands.query.shape[0] <= _HELD_REGISTERS
  for i, slot in enumerate(slots):

    def put(i=i, slot=slot):
      if not (read.adds and slot == operands.num_slots - 1):
        ring.wait(step, slot)
      x = ring.load(step, slot)
      sums.put(i, each(jnp.multiply, x, x))
      sums.put(count + i, each(jnp.multiply, x, query))
      if holds and _valid(operands, slot) is None:
        held[slot] = x

    when(_valid(operands, slot), put)
  sums.reduce()
  for i, slot in enumerate(slots):
    inverse_rms = lax.rsqrt(sums[i] / _width(operands) + read.eps)
    logit = sums[count + i] * inverse_rms
    if (valid := _valid(operands, slot)) is not None:
      inverse_rms = jnp.where(valid, inverse_rms, 0.0)
      logit = jnp.where(valid, logit, -jnp.inf)
    outputs.stats.inverse_rms[slot, token] = inverse_rms
    outputs.stats.logits[slot, token] = logit
    logits.append(logit)
  return logits, held


def _add(mix: Mix, operands, ring: Ring, step, slots: range, logits: list, held: dict) -> Mix:
  """Adds sources; what is there shrinks where a logit is a new peak."""
  peak = functools.reduce(jnp.maximum, logits, mix.peak)
  # Slots that do not count come first only if all of them have logit -inf so far.
  base = jnp.where(peak > -jnp.inf, peak, 0.0)
  shrink = jnp.exp(mix.peak - base)
  total, mixed = shrink * mix.total, each(lambda part: shrink * part, mix.mixed)
  for slot, logit in zip(slots, logits, strict=True):
    weight = jnp.exp(logit - base)

    def add(mixed, slot=slot, weight=weight):
      x = held[slot] if slot in held else ring.load(step, slot)
      return each(lambda part, x: part + weight * x, mixed, x)

    valid = _valid(operands, slot)
    mixed = add(mixed) if valid is None else lax.cond(valid, add, lambda mixed: mixed, mixed)
    total += weight
  return Mix(peak, total, mixed)


def _norm(read: Read, operands: Operands, sums: Sums, x: Row) -> Row:
  sums.put(0, each(jnp.multiply, x, x))
  sums.reduce()
  inverse_rms = lax.rsqrt(sums[0] / _width(operands) + read.eps)
  scale = row_ops.load(operands.out_norm_scale)
  return each(lambda part, gain: part * inverse_rms * gain, x, scale)


def _width(operands: Operands) -> int:
  return operands.query.shape[0] * row_ops.LANES
