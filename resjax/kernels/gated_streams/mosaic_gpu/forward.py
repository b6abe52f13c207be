"""The forward pass on NVIDIA GPUs: a kernel that normalises, and one that mixes through gates."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array
from resjax.kernels.gated_streams.mosaic_gpu import plan, products, rows
from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.mosaic_gpu import call, row_ops
from resjax.kernels.operation import Field


class Normed(NamedTuple):
  """R̂ [T, R, D / 128, 128], and 1 / RMS of every stream [T, R]."""

  rows: Field
  inverse_rms: Field


class _Mixed(NamedTuple):
  """What the kernel that mixes reads.

  Attributes:
    streams: H [R, T, D / 128, 128].
    gain: γ [R, D / 128, 128].
    gates: before the sigmoid [T, R, D / 128, 128].
    inverse_rms: see `Normed`.
  """

  streams: Field
  gain: Field
  gates: Field
  inverse_rms: Field


def forward(read: Read, operands: Operands) -> tuple[Array, Array | None, Array]:
  """Runs the forward pass on the rows of one device, see operation.py."""
  normed = normalise(read, operands)
  squeezed, logits = products.project(call.unfold(normed.rows), operands)
  x = mix(read, operands, products.gates(squeezed, operands), normed.inverse_rms)
  return x, logits, squeezed


def normalise(read: Read, operands: Operands) -> Normed:
  """Returns the normalised streams."""
  streams = call.fold(operands.streams)
  return rows.launch(
    read, partial(_normalise, read.eps), plan.normalise_tiles(read, operands), streams,
    "gated_read_normalise", inputs=(streams, rows.wide_gain(operands)),
    outputs=Normed(rows.by_token(streams), rows.numbers(streams)),
  ).outputs  # fmt: skip


def mix(read: Read, operands: Operands, gates: Array, inverse_rms: Array) -> Array:
  """Returns the read x [T, D], the gated mix of the streams.

  Args:
    read: options.
    operands: of the read.
    gates: before the sigmoid [T, R, D].
    inverse_rms: 1 / RMS of every stream [T, R].
  """
  streams = call.fold(operands.streams)
  inputs = _Mixed(streams, rows.wide_gain(operands), call.fold(gates), inverse_rms)
  x = rows.launch(
    read, _mix, plan.mix_tiles(read, operands), streams, "gated_read_mix", inputs=inputs,
    outputs=jax.ShapeDtypeStruct(streams.shape[1:], streams.dtype),
  ).outputs  # fmt: skip
  return call.unfold(x)


def _normalise(eps: float, refs: call.Refs) -> None:
  streams, gain = refs.inputs
  count, tokens, groups, _ = streams.shape
  ring = call.make_ring(refs.rings[0], call.stream_rows(streams), tokens)

  def token_forward(step: Array, _: None) -> None:
    token = ring.token(step)
    for position in range(count):
      ring.wait(step, position)
    scales = rows.inverse_rms(ring, refs.sums, step, count, eps)

    def write(index: Array, _: tuple) -> tuple:
      for s, scale in enumerate(scales):
        normed = ring.load_part(step, s, index) * scale * row_ops.load_part(gain.at[s], index)
        row_ops.store_part(refs.outputs.rows.at[token, s], index, normed)
      return ()

    row_ops.each_part(groups, write, ())
    for s, scale in enumerate(scales):
      refs.outputs.inverse_rms[token, s] = scale
    ring.release(step, range(count))

  lax.fori_loop(jnp.int32(0), ring.steps, token_forward, None)


def _mix(refs: call.Refs) -> None:
  inputs: _Mixed = refs.inputs
  count, tokens, groups, _ = inputs.streams.shape
  streams = *call.stream_rows(inputs.streams), *rows.token_rows(inputs.gates)
  ring = call.make_ring(refs.rings[0], streams, tokens)

  def token_forward(step: Array, _: None) -> None:
    token = ring.token(step)  # its numbers are loaded while its rows arrive
    scales = row_ops.numbers_of(inputs.inverse_rms, token)
    for position in range(len(streams)):
      ring.wait(step, position)

    def write(index: Array, _: tuple) -> tuple:
      terms = []
      for s, scale in enumerate(scales):
        gate = rows.sigmoid(ring.load_part(step, count + s, index))
        gain = row_ops.load_part(inputs.gain.at[s], index)
        terms.append(gate * ring.load_part(step, s, index) * (scale / count) * gain)
      row_ops.store_part(refs.outputs.at[token], index, sum(terms[1:], terms[0]))
      return ()

    row_ops.each_part(groups, write, ())
    ring.release(step, range(len(streams)))

  lax.fori_loop(jnp.int32(0), ring.steps, token_forward, None)
