"""The forward pass on NVIDIA GPUs: a kernel that writes the streams, and one that mixes them.

Without φ the coefficients are known beforehand, and one launch does both.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array
from resjax.kernels.mosaic_gpu import ChannelSums, GpuTiles, Ring, Row, call, row_ops
from resjax.kernels.operation import Field
from resjax.kernels.streams.mosaic_gpu import plan
from resjax.kernels.streams.mosaic_gpu.products import products
from resjax.kernels.streams.operands import Operands, Read, Stats, all_coefficients


class _Inputs(NamedTuple):
  """The inputs of the kernel; rows are [T, D / 128, 128].

  Attributes:
    streams: R rows of a token.
    out: what the write adds; None if there is nothing to write.
    weights: M and b of the write [T, R (R + 1)], or None.
    read: p [T, R]; None if nothing is mixed.
    gain: of the norm of what is mixed, or None.
  """

  streams: Field
  out: Field
  weights: Field
  read: Field
  gain: Field


class _Outputs(NamedTuple):
  """The outputs of the kernel: new streams, sums of their squares [T, R], and the mix."""

  streams: Field
  squares: Field
  x: Field


def forward(read: Read, operands: Operands) -> tuple[Array, Array, Array, Stats]:
  """Runs the forward pass on the rows of one device, see `reference.forward`."""
  phi, count = operands.projection, len(operands.pending.streams)
  tokens, width = operands.like.shape
  spread = jax.tree.map(lambda p: p[..., None], operands.parameters)
  if phi is None:
    stats = Stats(None, None)
    p, mixing = all_coefficients(read, count, stats, spread, (tokens,))
    streams, _, x = write(read, operands, p)
    return x, streams, mixing, stats
  streams, squares, _ = write(read, operands)
  stats = Stats(_products(streams, phi), squares / width)
  p, mixing = all_coefficients(read, count, stats, spread, (tokens,))
  return mix(read, operands, streams, p), streams, mixing, stats


def write(read: Read, operands: Operands, p: Array | None = None) -> _Outputs:
  """Returns the new streams, and the sums of their squares [R, T]; or, with p [R, T], Σ_r p_r H_r.

  What is mixed is normalised if there is a gain.
  """
  streams, weights, out = operands.pending
  count, tokens, _ = streams.shape
  rows, row = call.fold((streams, out))
  inputs = _Inputs(rows, row, weights.T, None, None)
  outputs = _Outputs(_like(rows), jax.ShapeDtypeStruct((tokens, count), jnp.float32), None)
  if p is not None:
    inputs = inputs._replace(read=p.T, gain=wide_gain(operands))
    outputs = outputs._replace(squares=None, x=_like(row))
  found = _launch(read, "stream_read_write", plan.write_tiles(read, operands), inputs, outputs)
  squares = found.squares.T if p is None else None
  return _Outputs(call.unfold(found.streams), squares, call.unfold(found.x))


def mix(read: Read, operands: Operands, streams: Array, p: Array) -> Array:
  """Returns Σ_r p_r H_r [T, D] of p [R, T], normalised if there is a gain."""
  rows = call.fold(streams)
  inputs = _Inputs(rows, None, None, p.T, wide_gain(operands))
  outputs = _Outputs(None, None, jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype))
  found = _launch(read, "stream_read_mix", plan.mix_tiles(read, operands), inputs, outputs)
  return call.unfold(found.x)


def wide_gain(operands: Operands) -> Array | None:
  """Returns the gain [D / 128, 128] float32, if there is one."""
  return None if operands.gain is None else call.fold(operands.gain.astype(jnp.float32))


def _like(x: Array) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _products(streams: Array, phi: Array) -> Array:
  """Returns `Stats.products`."""
  shared = phi.ndim == 2
  phi = jnp.broadcast_to(phi.astype(jnp.float32), (len(streams), *phi.shape[-2:]))
  found = products(streams, phi)
  return jnp.swapaxes(found, 1, 2) if shared else jnp.sum(found, axis=0).T


def _launch(
  read: Read, name: str, sizes: GpuTiles | None, inputs: _Inputs, outputs: _Outputs
) -> _Outputs:
  assert sizes is not None  # obstacles.py refuses reads without any
  like = jax.ShapeDtypeStruct(inputs.streams.shape[1:], inputs.streams.dtype)
  kernel = partial(_kernel, read.norm_eps)
  return call.launch(read, kernel, sizes, like, name, inputs=inputs, outputs=outputs).outputs


def _kernel(eps: float, refs: call.Refs) -> None:
  inputs: _Inputs = refs.inputs
  tokens = inputs.streams.shape[1]
  streams = call.stream_rows(inputs.streams)
  if inputs.out is not None:
    streams = (*streams, call.row_stream(inputs.out))
  ring = call.make_ring(refs.rings[0], streams, tokens)

  def token_forward(step: Array, _: None) -> None:
    token = ring.token(step)  # its numbers are loaded while its rows arrive
    weights, read = (row_ops.numbers_of(of, token) for of in (inputs.weights, inputs.read))
    for position in range(len(streams)):
      ring.wait(step, position)
    if weights:
      _write(weights, refs.outputs, ring, refs.sums, step)
    x = _mixed(read, ring, step) if read else None
    ring.release(step, range(len(streams)))
    if x is not None:
      if inputs.gain is not None:
        x = row_ops.scaled(x, refs.sums.inverse_rms(x, eps), inputs.gain)
      row_ops.store(refs.outputs.x.at[token], x)

  lax.fori_loop(jnp.int32(0), ring.steps, token_forward, None)


def _write(
  weights: list[Array], outputs: _Outputs, ring: Ring, sums: ChannelSums, step: Array
) -> None:
  """Writes the new streams of a token, also to the ring in place of the old ones."""
  token, (count, _, groups, _) = ring.token(step), outputs.streams.shape

  def write(index: Array, squares: tuple[Array, ...]) -> tuple[Array, ...]:
    parts = plan.written_part(ring, step, weights, index)
    for r, part in enumerate(parts):
      row_ops.store_part(ring.at(step, r), index, part)
      row_ops.store_part(outputs.streams.at[r, token], index, part)
    return tuple(total + part * part for total, part in zip(squares, parts, strict=True))

  squares = row_ops.each_part(groups, write, row_ops.zero_parts(groups, count))
  if outputs.squares is not None:
    for r, total in enumerate(squares):
      sums.put(r, (total,))
    sums.reduce()
    for r in range(count):
      outputs.squares[token, r] = sums[r]


def _mixed(read: list[Array], ring: Ring, step: Array) -> Row:
  rows = (ring.load(step, r) for r in range(len(read)))
  return tuple(row_ops.weighted(read, parts) for parts in zip(*rows, strict=True))
