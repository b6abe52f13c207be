"""The reverse pass on NVIDIA GPUs: back through the mix, through products, and through the norm."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.kernels.depth_attention.mosaic_gpu import call, row_ops
from resjax.kernels.depth_attention.mosaic_gpu.call import Refs, row_stream
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import ChannelSums
from resjax.kernels.depth_attention.operands import Ref
from resjax.kernels.gated_streams.mosaic_gpu import products, rows
from resjax.kernels.gated_streams.operands import Field, Operands, Read
from resjax.kernels.streams.mosaic_gpu import tiles
from resjax.kernels.streams.mosaic_gpu.forward import stream_rows
from resjax.typing import Array


class Inputs(NamedTuple):
  """What both kernels read.

  Attributes:
    streams: H [R, T, D / 128, 128].
    gain: γ [R, D / 128, 128].
    gates: before the sigmoid [T, R, D / 128, 128].
    d_x: cotangent of what was read [T, D / 128, 128].
  """

  streams: Field
  gain: Field
  gates: Field
  d_x: Field


class _Unmixed(NamedTuple):
  """What the first kernel writes.

  Attributes:
    normed: R̂ [T, R, D / 128, 128].
    d_opened: cotangent of the gates before the sigmoid, as large.
    inverse_rms: 1 / RMS of every stream [T, R].
  """

  normed: Field
  d_opened: Field
  inverse_rms: Field


class Back(NamedTuple):
  """What the second kernel reads besides.

  Attributes:
    inverse_rms: see `_Unmixed`.
    products: what the products add to the cotangent of R̂ [T, R, D / 128, 128].
    state: cotangent of the streams that were handed on [R, T, D / 128, 128], or None.
  """

  inverse_rms: Field
  products: Field
  state: Field


def backward(
  read: Read,
  operands: Operands,
  squeezed: Array,
  d_x: Array,
  d_logits: Array | None,
  d_streams: Array | None,
) -> Operands:
  """Runs the reverse pass on the rows of one device, see `backends.backward`."""
  inputs = inputs_of(operands, products.gates(squeezed, operands), d_x)
  unmixed = unmix(read, operands, inputs)
  normed, d_opened = call.unfold((unmixed.normed, unmixed.d_opened))
  d_products = products.products_back(squeezed, d_opened, d_logits, operands)
  d_weights = products.weights_back(squeezed, normed, d_opened, d_products, operands)
  back = call.fold(products.back(d_products, operands))
  state = None if d_streams is None else call.fold(d_streams)
  given = Back(unmixed.inverse_rms, back, state)
  return Operands(*unnormalise(read, operands, inputs, given), *d_weights)


def inputs_of(operands: Operands, gates: Array, d_x: Array) -> Inputs:
  """Returns what both kernels read, with gates before the sigmoid [T, R, D] and dx [T, D]."""
  streams, gates, d_x = call.fold((operands.streams, gates, d_x))
  return Inputs(streams, rows.wide_gain(operands), gates, d_x)


def unmix(read: Read, operands: Operands, inputs: Inputs) -> _Unmixed:
  """Returns what the first kernel finds."""
  streams = inputs.streams
  sizes = rows.unmix_tiles(read, operands)
  like = rows.by_token(streams)
  outputs = _Unmixed(like, like, rows.numbers(streams))
  return rows.launch(
    read, partial(_unmix, read.eps), sizes, streams, "gated_read_unmix",
    inputs=inputs, outputs=outputs,
  ).outputs  # fmt: skip


def _unmix(eps: float, refs: Refs) -> None:
  inputs: Inputs = refs.inputs
  count, tokens, groups, _ = inputs.streams.shape
  ring = call.make_ring(refs.rings[0], _streams(inputs), tokens)

  def token_backward(step: Array, _: None) -> None:
    token, outputs = ring.token(step), refs.outputs
    for position in range(len(ring.streams)):
      ring.wait(step, position)
    scales = rows.inverse_rms(ring, refs.sums, step, count, eps)

    def write(index: Array, _: tuple) -> tuple:
      d_x = ring.load_part(step, 2 * count, index) / count
      for s, scale in enumerate(scales):
        gain = row_ops.load_part(inputs.gain.at[s], index)
        normed = ring.load_part(step, s, index) * scale * gain
        gate = rows.sigmoid(ring.load_part(step, count + s, index))
        row_ops.store_part(outputs.normed.at[token, s], index, normed)
        d_opened = d_x * normed * gate * (1 - gate)
        row_ops.store_part(outputs.d_opened.at[token, s], index, d_opened)
      return ()

    tiles.each_part(groups, write, ())
    for s, scale in enumerate(scales):
      outputs.inverse_rms[token, s] = scale
    ring.release(step, range(len(ring.streams)))

  lax.fori_loop(jnp.int32(0), ring.steps, token_backward, None)


def _streams(inputs: Inputs) -> tuple:
  """Returns the rows of a token that both kernels read, in the order of `Inputs`."""
  return *stream_rows(inputs.streams), *rows.token_rows(inputs.gates), row_stream(inputs.d_x)


def unnormalise(
  read: Read, operands: Operands, inputs: Inputs, given: Back
) -> tuple[Array, Array]:
  """Returns the cotangents of the streams and of γ."""
  streams, gain = inputs.streams, operands.gain
  found = rows.launch(
    read, _unnormalise, rows.unnormalise_tiles(read, operands), streams, "gated_read_unnormalise",
    inputs=(inputs, given), outputs=jax.ShapeDtypeStruct(streams.shape, streams.dtype),
    numbers=(plgpu.SMEM(inputs.gain.shape, jnp.float32),),
    totals=jax.ShapeDtypeStruct(inputs.gain.shape, jnp.float32),
  )  # fmt: skip
  d_gain = call.unfold(found.totals)
  if len(gain) < len(streams):
    d_gain = jnp.sum(d_gain, axis=0, keepdims=True)
  return call.unfold(found.outputs), d_gain.astype(gain.dtype)


def _unnormalise(refs: Refs) -> None:
  """Works on one stream of a token after the other: few rows are on the chip at a time."""
  inputs, given = refs.inputs
  count, tokens, groups, _ = inputs.streams.shape
  per_stream = [
    (row_stream(inputs.d_x),) * count, stream_rows(inputs.streams), rows.token_rows(inputs.gates),
    rows.token_rows(given.products),
  ]  # fmt: skip
  if given.state is not None:
    per_stream.append(stream_rows(given.state))
  streams = tuple(itertools.chain.from_iterable(zip(*per_stream, strict=True)))
  ring, d_gain = call.make_ring(refs.rings[0], streams, tokens), refs.numbers[0]
  for s in range(count):  # every thread adds to its own channels alone
    row_ops.store(d_gain.at[s], row_ops.zeros(groups))

  def token_backward(step: Array, _: None) -> None:
    scales = tiles.numbers_of(given.inverse_rms, ring.token(step))
    for s, scale in enumerate(scales):
      positions = range(s * len(per_stream), (s + 1) * len(per_stream))
      for position in positions:
        ring.wait(step, position)
      part = partial(ring.load_part, step)
      row = _Row(inputs.gain.at[s], d_gain.at[s], refs.outputs.at[s, ring.token(step)])
      _unnormalise_row(row, [partial(part, p) for p in positions], refs.sums, scale, count)
      ring.release(step, positions)

  lax.fori_loop(jnp.int32(0), ring.steps, token_backward, None)
  own = refs.own_totals()
  for s in range(count):
    row_ops.store(own.at[s], row_ops.load(d_gain.at[s]))


class _Row(NamedTuple):
  """References of a stream of a token: its γ and the sums for that, and where its cotangent goes."""

  gain: Ref
  d_gain: Ref
  out: Ref


def _unnormalise_row(
  row: _Row, loads: list[Callable], sums: ChannelSums, scale: Array, count: int
) -> None:
  """Writes the cotangent of a stream of a token; adds to that of its γ.

  Args:
    row: references.
    loads: functions of the number of a part, of dx, H, gates, products and, if given, state.
    sums: what a sum over channels needs.
    scale: 1 / RMS of the stream.
    count: R.
  """
  d_x, stream, gate, back, *state = loads
  groups = row.gain.shape[0]

  def cotangent(index: Array) -> tuple[Array, Array, Array]:
    """Returns a part of the cotangent of R̂, of H / RMS(H), and of γ."""
    d = d_x(index) / count * rows.sigmoid(gate(index)) + back(index)
    return d, stream(index) * scale, row_ops.load_part(row.gain, index)

  def add(index: Array, totals: tuple[Array]) -> tuple[Array]:
    d, unit, gain = cotangent(index)
    row_ops.store_part(row.d_gain, index, row_ops.load_part(row.d_gain, index) + d * unit)
    return (totals[0] + d * gain * unit,)

  (total,) = rows.summed(sums, tiles.each_part(groups, add, tiles.zeros(groups, 1)))
  mean = total / (groups * row_ops.LANES)

  def write(index: Array, _: tuple) -> tuple:
    d, unit, gain = cotangent(index)
    d = scale * (d * gain - unit * mean)
    row_ops.store_part(row.out, index, d + state[0](index) if state else d)
    return ()

  tiles.each_part(groups, write, ())
