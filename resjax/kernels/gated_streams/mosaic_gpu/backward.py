"""The reverse pass on NVIDIA GPUs: back through the mix, through products, and through the norm."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base import Array
from resjax.kernels.gated_streams.mosaic_gpu import plan, products, rows
from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.mosaic_gpu import ChannelSums, Stream, call, row_ops
from resjax.kernels.operation import Field, Ref


class Inputs(NamedTuple):
  """The inputs of both kernels.

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


class Given(NamedTuple):
  """Further inputs of the second kernel.

  Attributes:
    inverse_rms: see `_Unmixed`.
    projected: the part of the cotangent of R̂ that comes through the products
      [T, R, D / 128, 128].
    state: cotangent of the returned streams [R, T, D / 128, 128], or None.
  """

  inverse_rms: Field
  projected: Field
  state: Field


def backward(read: Read, operands: Operands, squeezed: Array, *cotangents: Any) -> Operands:
  """Runs the reverse pass on the rows of one device, see operation.py."""
  d_x, d_logits, d_streams = cotangents
  inputs = inputs_of(operands, products.gates(squeezed, operands), d_x)
  unmixed = unmix(read, operands, inputs)
  normed, d_opened = call.unfold((unmixed.normed, unmixed.d_opened))
  d_products = products.products_back(squeezed, d_opened, d_logits, operands)
  d_weights = products.weights_back(squeezed, normed, d_opened, d_products, operands)
  projected = call.fold(products.back(d_products, operands))
  state = None if d_streams is None else call.fold(d_streams)
  given = Given(unmixed.inverse_rms, projected, state)
  return Operands(*unnormalise(read, operands, inputs, given), *d_weights)


def inputs_of(operands: Operands, gates: Array, d_x: Array) -> Inputs:
  """Returns the inputs of both kernels, from gates before the sigmoid [T, R, D] and dx [T, D]."""
  streams, gates, d_x = call.fold((operands.streams, gates, d_x))
  return Inputs(streams, rows.wide_gain(operands), gates, d_x)


def unmix(read: Read, operands: Operands, inputs: Inputs) -> _Unmixed:
  """Runs the first kernel, the backward of the mix."""
  streams = inputs.streams
  like = rows.by_token(streams)
  outputs = _Unmixed(like, like, rows.numbers(streams))
  return rows.launch(
    read, partial(_unmix, read.eps), plan.unmix_tiles(read, operands), streams,
    "gated_read_unmix",
    inputs=inputs, outputs=outputs,
  ).outputs  # fmt: skip


def _unmix(eps: float, refs: call.Refs) -> None:
  inputs: Inputs = refs.inputs
  count, tokens, groups, _ = inputs.streams.shape
  ring = call.make_ring(refs.rings[0], _unmix_rows(inputs), tokens)

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

    row_ops.each_part(groups, write, ())
    for s, scale in enumerate(scales):
      outputs.inverse_rms[token, s] = scale
    ring.release(step, range(len(ring.streams)))

  lax.fori_loop(jnp.int32(0), ring.steps, token_backward, None)


def _unmix_rows(inputs: Inputs) -> tuple[Stream, ...]:
  """Returns the rows of H, gates and dx that a token loads."""
  return (
    *call.stream_rows(inputs.streams),
    *rows.token_rows(inputs.gates),
    call.row_stream(inputs.d_x),
  )


def unnormalise(
  read: Read, operands: Operands, inputs: Inputs, given: Given
) -> tuple[Array, Array]:
  """Returns the cotangents of the streams and of γ."""
  streams, gain = inputs.streams, operands.gain
  found = rows.launch(
    read, _unnormalise, plan.unnormalise_tiles(read, operands), streams, "gated_read_unnormalise",
    inputs=(inputs, given), outputs=jax.ShapeDtypeStruct(streams.shape, streams.dtype),
    numbers=(plgpu.SMEM(inputs.gain.shape, jnp.float32),),
    totals=jax.ShapeDtypeStruct(inputs.gain.shape, jnp.float32),
  )  # fmt: skip
  d_gain = call.unfold(found.totals)
  if len(gain) < len(streams):
    d_gain = jnp.sum(d_gain, axis=0, keepdims=True)
  return call.unfold(found.outputs), d_gain.astype(gain.dtype)


def _unnormalise(refs: call.Refs) -> None:
  """Works on one stream of a token after the other: few rows are on the chip at a time."""
  inputs, given = refs.inputs
  count, tokens, groups, _ = inputs.streams.shape

  def place(item: Array) -> tuple[Array, Array]:
    """Returns stream and token of one of R T rows."""
    return lax.rem(item, jnp.int32(count)), lax.div(item, jnp.int32(count))

  streams = [
    Stream(lambda item: inputs.d_x.at[place(item)[1]]),
    Stream(lambda item: inputs.streams.at[place(item)]),
    Stream(lambda item: inputs.gates.at[place(item)[::-1]]),
    Stream(lambda item: given.projected.at[place(item)[::-1]]),
  ]
  if given.state is not None:
    streams.append(Stream(lambda item: given.state.at[place(item)]))
  ring = call.make_ring(refs.rings[0], tuple(streams), tokens, parts=count)
  d_gain, positions = refs.numbers[0], range(len(streams))
  for s in range(count):  # every thread adds to its own channels alone
    row_ops.store(d_gain.at[s], row_ops.zeros(groups))

  def row_backward(step: Array, _: None) -> None:
    s, token = place(ring.token(step))
    scale = given.inverse_rms[token, s]
    for position in positions:
      ring.wait(step, position)
    row = _Row(inputs.gain.at[s], d_gain.at[s], refs.outputs.at[s, token])
    loads = [partial(ring.load_part, step, position) for position in positions]
    _unnormalise_row(row, loads, refs.sums, scale, count)
    ring.release(step, positions)

  lax.fori_loop(jnp.int32(0), ring.steps, row_backward, None)
  own = refs.own_totals()
  for s in range(count):
    row_ops.store(own.at[s], row_ops.load(d_gain.at[s]))


class _Row(NamedTuple):
  """References for a stream of a token: γ, the sums of its cotangent, and that of the stream."""

  gain: Ref
  d_gain: Ref
  out: Ref


def _unnormalise_row(
  row: _Row, loads: Sequence[Callable], sums: ChannelSums, scale: Array, count: int
) -> None:
  """Writes the cotangent of a stream of a token; adds to the cotangent of its γ.

  Args:
    row: references.
    loads: functions that load a part of dx, H, the gates, `Given.projected` and, if there is one,
      `Given.state`.
    sums: memory for sums over channels.
    scale: 1 / RMS of the stream.
    count: R.
  """
  d_x, stream, gate, projected, *state = loads
  groups = row.gain.shape[0]

  def cotangent(index: Array) -> tuple[Array, Array, Array]:
    """Returns a part of the cotangent of R̂; of H / RMS(H); and of γ itself."""
    d = d_x(index) / count * rows.sigmoid(gate(index)) + projected(index)
    return d, stream(index) * scale, row_ops.load_part(row.gain, index)

  def add(index: Array, totals: tuple[Array]) -> tuple[Array]:
    d, unit, gain = cotangent(index)
    row_ops.store_part(row.d_gain, index, row_ops.load_part(row.d_gain, index) + d * unit)
    return (totals[0] + d * gain * unit,)

  (total,) = rows.summed(sums, row_ops.each_part(groups, add, row_ops.zero_parts(groups, 1)))
  mean = total / (groups * row_ops.LANES)

  def write(index: Array, _: tuple) -> tuple:
    d, unit, gain = cotangent(index)
    d = scale * (d * gain - unit * mean)
    row_ops.store_part(row.out, index, d + state[0](index) if state else d)
    return ()

  row_ops.each_part(groups, write, ())
