"""Forward pass of the direct read on NVIDIA GPUs: every source is loaded once.

The softmax runs along with the sources: a group of sources is loaded, its logits are computed, and
it is added to the mix, which is rescaled whenever a logit exceeds all before it.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array
from resjax.kernels.depth_attention.mosaic_gpu import direct_plan, source_rows
from resjax.kernels.depth_attention.operands import Operands, Read, Stats
from resjax.kernels.mosaic_gpu import GpuTiles, Ring, Row, Stream, call, room_of, row_ops, when
from resjax.kernels.operation import Field


class _Outputs(NamedTuple):
  """What the kernel writes: rows [T, D / 128, 128], and statistics."""

  out: Field
  running: Field
  stats: Stats


class _Mix(NamedTuple):
  """A softmax-weighted sum over the sources so far.

  Attributes:
    peak: largest logit so far.
    total: Σ_n exp(logit_n − peak).
    mixed: Σ_n exp(logit_n − peak) v_n.
  """

  peak: Array
  total: Array
  mixed: Row


def tiles_of(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the forward pass of a read; None if there are none."""
  slots = operands.num_slots
  return direct_plan.choose_forward(operands.like, slots, slots + read.adds, room_of(read))


def forward(read: Read, operands: Operands) -> tuple[Array, Array | None, Stats]:
  """Runs the forward pass on the rows of one device, see reference/direct.py."""
  folded = source_rows.fold_operands(operands)
  like = folded.like
  row = jax.ShapeDtypeStruct(like.shape, like.dtype)
  per_slot = jax.ShapeDtypeStruct((operands.num_slots, len(like)), jnp.float32)
  per_token = jax.ShapeDtypeStruct((len(like),), jnp.float32)
  tiles = tiles_of(read, operands)
  assert tiles is not None  # obstacles.py refuses reads without any
  kernel, name = functools.partial(_kernel, read, tiles.group), "depth_attention_forward"
  stats = Stats(per_slot, per_slot, per_token)
  outputs = _Outputs(row, row if read.adds else None, stats)
  written = call.launch(read, kernel, tiles, like, name, inputs=folded, outputs=outputs).outputs
  return *call.unfold((written.out, written.running)), written.stats


def _kernel(read: Read, group: int, refs: call.Refs) -> None:
  operands: Operands = refs.inputs
  streams = source_rows.source_streams(operands)
  if read.adds:  # the last source is needed for the sum even if it does not count
    streams = (*streams[:-1], Stream(streams[-1].row), call.row_stream(operands.addend))
  tokens, groups, _ = operands.like.shape
  ring = call.make_ring(refs.rings[0], streams, tokens)
  query = row_ops.load(operands.query)

  def read_token(step: Array, _: None) -> None:
    token = _Token(read, operands, refs.outputs, ring, refs.sums, query, step)
    mix = _Mix(jnp.float32(-jnp.inf), jnp.float32(0.0), row_ops.zeros(groups))
    for start in range(0, operands.num_slots, group):
      slots = range(start, min(start + group, operands.num_slots))
      if read.adds and slots[-1] == operands.num_slots - 1:
        token.join_addend()
      mix = token.add_sources(mix, slots, *token.score(slots))
      released = len(streams) if slots[-1] == operands.num_slots - 1 else slots.stop
      ring.release(step, range(start, released))
    token.write(mix)

  lax.fori_loop(jnp.int32(0), ring.steps, read_token, None)


@dataclasses.dataclass(frozen=True)
class _Token:
  """A token that is read: references, and its row of the query in registers.

  Attributes:
    read: options.
    operands: references.
    outputs: references.
    ring: sources on their way.
    sums: memory for sums over channels.
    query: row of the query.
    step: index of the token within its program.
  """

  read: Read
  operands: Operands
  outputs: _Outputs
  ring: Ring
  sums: row_ops.ChannelSums
  query: Row
  step: Array

  def _valid(self, slot: int) -> Array | None:
    """Returns whether a slot counts; None if it always does."""
    return source_rows.source_streams(self.operands)[slot].valid

  def join_addend(self) -> None:
    """Adds the addend to the last source, in the ring and in global memory."""
    ring, step, last = self.ring, self.step, self.operands.num_slots - 1
    ring.wait(step, last)
    ring.wait(step, last + 1)
    running = row_ops.each(jnp.add, ring.load(step, last), ring.load(step, last + 1))
    ring.store(step, last, running)
    row_ops.store(self.outputs.running.at[ring.token(step)], running)

  def score(self, slots: range) -> tuple[list[Array], dict[int, Row]]:
    """Writes the logits and the inverse RMS of a group of slots.

    Returns:
      The logits; and the sources by slot that need not be loaded from shared memory again: if
      registers have room for the group, all that are sure to count.
    """
    operands, stats, sums, eps = self.operands, self.outputs.stats, self.sums, self.read.eps
    count, token, logits = len(slots), self.ring.token(self.step), []
    held: dict[int, Row] = {}
    has_room = count * operands.query.shape[0] <= direct_plan.HELD_REGISTERS
    for i, slot in enumerate(slots):

      def put(i: int = i, slot: int = slot) -> None:
        if not (self.read.adds and slot == operands.num_slots - 1):
          self.ring.wait(self.step, slot)
        x = self.ring.load(self.step, slot)
        sums.put(i, row_ops.each(jnp.multiply, x, x))
        sums.put(count + i, row_ops.each(jnp.multiply, x, self.query))
        if has_room and self._valid(slot) is None:
          held[slot] = x

      when(self._valid(slot), put)
    sums.reduce()
    width = operands.query.shape[0] * row_ops.LANES
    for i, slot in enumerate(slots):
      inverse_rms = lax.rsqrt(sums[i] / width + eps)
      logit = sums[count + i] * inverse_rms
      if (valid := self._valid(slot)) is not None:
        inverse_rms = jnp.where(valid, inverse_rms, 0.0)
        logit = jnp.where(valid, logit, -jnp.inf)
      stats.inverse_rms[slot, token] = inverse_rms
      stats.logits[slot, token] = logit
      logits.append(logit)
    return logits, held

  def add_sources(self, mix: _Mix, slots: range, logits: list[Array], held: dict[int, Row]) -> _Mix:
    """Returns the mix with a group of sources added, rescaled if there is a new largest logit."""
    peak = functools.reduce(jnp.maximum, logits, mix.peak)
    # While no slot has counted yet the peak is -inf, which must not be subtracted from itself.
    base = jnp.where(peak > -jnp.inf, peak, 0.0)
    rescale = jnp.exp(mix.peak - base)
    total, mixed = rescale * mix.total, row_ops.each(lambda part: rescale * part, mix.mixed)
    for slot, logit in zip(slots, logits, strict=True):
      weight = jnp.exp(logit - base)

      def add(mixed: Row, slot: int = slot, weight: Array = weight) -> Row:
        x = held[slot] if slot in held else self.ring.load(self.step, slot)
        return row_ops.each(lambda part, x: part + weight * x, mixed, x)

      valid = self._valid(slot)
      mixed = add(mixed) if valid is None else lax.cond(valid, add, lambda mixed: mixed, mixed)
      total += weight
    return _Mix(peak, total, mixed)

  def write(self, mix: _Mix) -> None:
    """Writes the output, normalised if there is a gain, and the lse."""
    token, scale = self.ring.token(self.step), self.operands.out_norm_scale
    self.outputs.stats.lse[token] = mix.peak + jnp.log(mix.total)
    out = row_ops.each(lambda x: x / mix.total, mix.mixed)
    if scale is not None:
      out = row_ops.scaled(out, self.sums.inverse_rms(out, self.read.out_norm_eps), scale)
    row_ops.store(self.outputs.out.at[token], out)
