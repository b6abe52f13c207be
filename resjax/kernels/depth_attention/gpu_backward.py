"""Reverse pass of depth attention on NVIDIA GPUs.

Each source and the cotangent of the output are read once, each cotangent of a source is written
once. The cotangents of query and output gain are summed in registers over the tokens of a program,
which writes one row of each.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.kernels.depth_attention import gpu_call, gpu_tiles
from resjax.kernels.depth_attention.gpu_ring import LANES, Ring, Segment, load_row, zero_row
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.typing import Array, PyTree

# Slots of the numbers per source that lie in shared memory: what d_out, query and the source
# itself are multiplied by in the cotangent of a source.
_WEIGHT, _DOT, _SHRINK = range(3)


def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_sources: PyTree
) -> Cotangents:
  """Reverse pass; see `depth_attention` for the equations, `reference.backward` for the rest."""
  inputs = gpu_call.fold((operands._replace(counts=None), d_out, d_sources))
  folded, d_out, d_sources = inputs
  folded = folded._replace(counts=operands.counts)
  like = folded.like
  tiles = gpu_tiles.choose_backward(operands.like, operands.num_slots)
  programs = gpu_call.num_programs(read, len(like), tiles)
  partial_sum = jax.ShapeDtypeStruct((programs, *like.shape[1:]), jnp.float32)
  shapes = jax.tree.map(jax.typeof, (folded.bank, folded.recent))
  d_scale = None if folded.out_norm_scale is None else partial_sum
  d = gpu_call.launch(
    read,
    functools.partial(_kernel, read, programs),
    (folded, stats, d_out, d_sources),
    Cotangents(*shapes, partial_sum, d_scale),
    tiles=tiles,
    programs=programs,
    like=like,
    scratch=(plgpu.SMEM((3, LANES), jnp.float32),),
  )
  d = gpu_call.unfold(d)
  sums = jax.tree.map(lambda x: jnp.sum(x, axis=0), (d.query, d.out_norm_scale))
  return Cotangents(d.bank, d.recent, *sums)


def _kernel(
  read: Read, programs: int, inputs: PyTree, outputs: Cotangents, rows, barriers, numbers
):
  operands, stats, d_out, d_sources = inputs
  tokens, groups, _ = operands.like.shape
  norms = operands.out_norm_scale is not None
  num_sweeps = 3 if norms else 2
  kept = rows.shape[0] > operands.num_slots
  sources = gpu_call.source_segments(operands, all_recent=False)
  segments = (Segment(d_out), *sources * (1 if kept else num_sweeps))
  ring = gpu_call.make_ring(rows, barriers, segments, tokens, programs)
  ring.start()
  query = load_row(operands.query)

  def token_backward(step, sums):
    token = ring.token(step)
    *mixing, scoring, writing = (
      Sweep(operands, ring, step, kept, index, num_sweeps) for index in range(num_sweeps)
    )
    column = functools.partial(_column, operands.num_slots, token)
    inverse_rms, logits = column(stats.inverse_rms), column(stats.logits)
    counts = lax.lt(_slots(), jnp.int32(operands.num_slots)) & (logits > -jnp.inf)
    weights = jnp.where(counts, jnp.exp(logits - stats.lse[token]), 0.0)
    numbers[_WEIGHT] = weights
    ring.wait(step, 0)
    d_mixed = ring.load(step, 0)
    ring.release(step, 0)
    if norms:
      mixed = mixing[0](lambda slot, x, h: h + numbers[_WEIGHT, slot] * x, zero_row(groups))
      d_mixed, d_scale = _norm_backward(read, mixed, load_row(operands.out_norm_scale), d_mixed)
      sums = (sums[0], sums[1] + d_scale)

    def score(slot, x, scores):
      return jnp.where(_slots() == slot, jnp.sum(d_mixed * x), scores)

    scores = scoring(score, _zeros())
    d_dot = weights * (scores - jnp.sum(weights * scores)) * inverse_rms
    numbers[_DOT] = d_dot
    numbers[_SHRINK] = d_dot * inverse_rms * jnp.where(counts, logits, 0.0) / (groups * LANES)

    def write(slot, x, d_query):
      dot = numbers[_DOT, slot]
      own = numbers[_WEIGHT, slot] * d_mixed + dot * query - numbers[_SHRINK, slot] * x
      _write(outputs, d_sources, slot, token, own)
      return d_query + dot * x

    skip = functools.partial(_write, outputs, d_sources, token=token, own=zero_row(groups))
    return (writing(write, sums[0], skip), *sums[1:])

  sums = (zero_row(groups),) * (2 if norms else 1)
  d_query, *d_scale = lax.fori_loop(jnp.int32(0), ring.steps, token_backward, sums)
  program = gpu_call.program()
  outputs.query[program] = d_query
  if norms:
    outputs.out_norm_scale[program] = d_scale[0]


@dataclasses.dataclass(frozen=True)
class Sweep:
  """One walk over the sources of a token.

  Attributes:
    operands: references.
    ring: holds the cotangent of the output, then the sources: once if they are kept, else once
      for every sweep.
    step: of the program.
    kept: whether the sources stay in the ring until the last sweep.
    index: of the sweep.
    num_sweeps: over a token.
  """

  operands: Operands
  ring: Ring
  step: Array
  kept: bool
  index: int
  num_sweeps: int

  def __call__(self, body: Callable, carry: PyTree, skip: Callable | None = None) -> PyTree:
    """Runs `body(slot, x, carry) -> carry` over the sources that count, `skip(slot)` elsewhere."""
    releases = not self.kept or self.index == self.num_sweeps - 1

    def read(slot, carry):
      position = self._position(slot)
      if not self.kept or self.index == 0:
        self.ring.wait(self.step, position)
      x = self.ring.load(self.step, position)
      if releases:
        self.ring.release(self.step, position)
      return body(slot, x, carry)

    def pass_by(slot):
      if releases:
        self.ring.release(self.step, self._position(slot))
      if skip is not None:
        skip(slot)

    return gpu_call.each_source(self.operands, read, pass_by, carry)

  def _position(self, slot):
    return 1 + slot + (0 if self.kept else self.index * self.operands.num_slots)


def _norm_backward(read: Read, x: Array, scale: Array, d_out: Array) -> tuple[Array, Array]:
  """Cotangents of x and scale of x · r · scale, r the inverse RMS of the row x."""
  inverse_rms, d_normed = lax.rsqrt(jnp.sum(x * x) / x.size + read.eps), d_out * scale
  along = jnp.sum(d_normed * x) / x.size * inverse_rms * inverse_rms
  return inverse_rms * (d_normed - along * x), d_out * x * inverse_rms


def _write(outputs: Cotangents, d_sources: PyTree, slot, token, own: Array) -> None:
  """Writes the cotangent of a source, `own` or what it had before and `own`."""
  num_banked = 0 if outputs.bank is None else outputs.bank.shape[0]

  def place(bank, recent):
    return recent[slot - num_banked].at[token] if isinstance(slot, int) else bank.at[slot, token]

  total = own if d_sources is None else load_row(place(*d_sources)) + own
  out = place(outputs.bank, outputs.recent)
  out[...] = total.astype(out.dtype)


# One number per source, in the registers of one thread each.


def _vector(x: Array) -> Array:
  return plgpu.layout_cast(x, plgpu.Layout.WG_STRIDED((LANES,), vec_size=1))


def _zeros() -> Array:
  return _vector(jnp.zeros((LANES,), jnp.float32))


def _slots() -> Array:
  layout = plgpu.Layout.WG_STRIDED((LANES,), vec_size=1)
  return plgpu.broadcasted_iota(jnp.int32, (LANES,), 0, layout=layout)


def _column(num_slots: int, token: Array, ref) -> Array:
  """Reads [num_slots, token] of a reference; the rest is zero."""
  column = _zeros()
  for slot in range(num_slots):
    column = jnp.where(_slots() == slot, ref[slot, token], column)
  return column
