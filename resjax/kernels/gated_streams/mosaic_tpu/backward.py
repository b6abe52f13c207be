"""The reverse kernel for TPUs: streams are loaded once, and their cotangents are written once."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.kernels.gated_streams.mosaic_tpu import plan as tiles
from resjax.kernels.gated_streams.mosaic_tpu.plan import Plan, Weights
from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.mosaic_tpu import SUBLANES, TOKENS, Span, call, columns, dot, wide
from resjax.kernels.operation import LANES


class _Given(NamedTuple):
  """The inputs of the reverse kernel.

  Attributes:
    streams: H [R, T, D].
    weights: see `Weights`.
    squeezed: z [T, rank] float32.
    d_x: cotangent of what was read [T, D].
    d_logits: of the logits [R, T] float32, or None.
    d_streams: of the returned streams [R, T, D], or None.
  """

  streams: Any
  weights: Any
  squeezed: Any
  d_x: Any
  d_logits: Any
  d_streams: Any


class _Outputs(NamedTuple):
  """The outputs of the reverse kernel.

  Attributes:
    streams: the cotangents of the streams [R, T, D].
    weights: the cotangents of the weights, summed over the tiles of a part, float32.
  """

  streams: Any
  weights: Any


class _Scratch(NamedTuple):
  """Buffers in VMEM.

  Attributes:
    scales: 1 / RMS of every stream, see `Plan.scales`.
    gates: G [R, TOKENS, D].
    inner: silu(z) [TOKENS, rank].
    d_inner: its cotangent, float32.
    d_products: cotangent of Σ_s R̂_s [W_down_s, W_inject_s] [TOKENS, rows].
    columns: cotangents of the logits, a token per row, or None.
    back: γ_s times the cotangent of R̂_s for one stream [TOKENS, D] float32.
  """

  scales: Any
  gates: Any
  inner: Any
  d_inner: Any
  d_products: Any
  columns: Any
  back: Any


@call.on_one_device
def backward(read: Read, operands: Operands, squeezed: Array, *cotangents: Any) -> Operands:
  """Runs the reverse pass, see operation.py."""
  d_x, d_logits, d_streams = cotangents
  plan = Plan.of(read, operands)
  count, tokens, width = operands.streams.shape
  weights = plan.weights(operands)
  sums, sum_specs = plan.summed(weights._replace(gain=plan.like(count, SUBLANES, width)))
  written, streams = plan.injected > 0, plan.streams(plan.buffers)
  given = _Given(
    operands.streams, weights, squeezed, d_x,
    None if d_logits is None else d_logits.astype(jnp.float32), d_streams,
  )  # fmt: skip
  found = plan.run(
    read, lambda *refs: _run(read, plan, *refs), "gated_read_backward",
    (given,),
    in_specs=(
      _Given(
        streams, plan.whole(weights), plan.squeezed(),
        plan.tokens(plan.buffers), plan.logits() if written else None, streams if written else None,
      ),
    ),
    out_specs=_Outputs(streams, sum_specs),
    out_shape=_Outputs(plan.like(count, tokens, width), sums),
    scratch=_Scratch(
      plan.scales(),
      pltpu.VMEM((count, TOKENS, width), plan.dtype),
      pltpu.VMEM((TOKENS, plan.rank), plan.dtype),
      pltpu.VMEM((TOKENS, plan.rank), jnp.float32),
      pltpu.VMEM((TOKENS, plan.rows), plan.dtype),
      columns.room(count) if written else None,
      pltpu.VMEM((TOKENS, width), jnp.float32),
    ),
    vmem_limit=plan.vmem_limit,
    cost=plan.cost(
      2 * plan.rows + 3 * plan.rank, (3 if written else 2) * count + 1, summed=True
    ),
    # In place: R streams less of memory while the kernel runs.
    aliases={len(jax.tree.leaves(given)) - 1: 0} if written else {},
  )  # fmt: skip
  return plan.gradients(operands, found.weights)._replace(streams=found.streams)


def _run(read: Read, plan: Plan, given: _Given, outputs: _Outputs, scratch: _Scratch) -> None:
  """Runs the reverse pass of one tile of tokens."""

  @pl.when(pl.program_id(1) == 0)
  def _() -> None:
    tiles.for_each_step(plan, lambda lanes, _: _clear(outputs.weights, lanes), at_once=1)

  tiles.find_scales(plan, read.eps, given.streams, scratch.scales)
  squeezed = given.squeezed[...]
  share = jax.nn.sigmoid(squeezed)
  scratch.inner[...] = (squeezed * share).astype(plan.dtype)
  _open_back(plan, given, outputs, scratch)
  slope = share * (1 + squeezed * (1 - share)) / plan.num_streams
  scratch.d_products[:, : plan.rank] = (scratch.d_inner[...] * slope).astype(plan.dtype)
  if plan.injected:
    columns.write(given.d_logits[...] / plan.num_streams, scratch.columns)
    injected = scratch.columns[:, : plan.injected]
    scratch.d_products[:, plan.rank :] = injected.astype(plan.dtype)
  for_each = tiles.for_each_stream
  for_each(plan.num_streams, lambda s, _: _write(plan, given, outputs, scratch, s))


def _clear(sums: Weights, lanes: Span) -> None:
  for ref in sums:
    ref[:, :, lanes] = jnp.zeros((*ref.shape[:2], lanes.size), ref.dtype)


def _open_back(plan: Plan, given: _Given, outputs: _Outputs, scratch: _Scratch) -> None:
  """Writes gates and the cotangent of silu(z); adds to that of W_up."""
  scratch.d_inner[...] = jnp.zeros_like(scratch.d_inner)

  def step(lanes: Span, _: None) -> None:
    d = wide(given.d_x, slice(None), lanes) / plan.num_streams

    def stream(s: Array, _: None) -> None:
      outward, inner = given.weights.outward[s, :, lanes], scratch.inner[...]
      gate = jax.nn.sigmoid(dot(inner, outward, 1, 0))
      scratch.gates[s, :, lanes] = gate.astype(plan.dtype)
      normed = wide(given.streams, s, slice(None), lanes) * scratch.scales[s]
      normed = normed * given.weights.gain[s, :, lanes]
      d_opened = (d * normed * gate * (1 - gate)).astype(plan.dtype)
      outputs.weights.outward[s, :, lanes] += dot(inner, d_opened, 0, 0)
      scratch.d_inner[...] += dot(d_opened, outward, 1, 1)

    tiles.for_each_stream(plan.num_streams, stream)

  tiles.for_each_step(plan, step, at_once=1)  # two would gain nothing here


def _write(plan: Plan, given: _Given, outputs: _Outputs, scratch: _Scratch, s: Array) -> None:
  """Writes the cotangent of a stream; adds to the cotangents of its γ, W_down and W_inject."""
  scale = scratch.scales[s]

  def step(lanes: Span, total: Array) -> Array:
    gain = given.weights.gain[s, :, lanes]
    unit = wide(given.streams, s, slice(None), lanes) * scale
    d_products, inward = scratch.d_products[...], given.weights.inward[s, :, lanes]
    normed = (unit * gain).astype(plan.dtype)
    outputs.weights.inward[s, :, lanes] += dot(d_products, normed, 0, 0)
    d = wide(given.d_x, slice(None), lanes) / plan.num_streams
    d = d * wide(scratch.gates, s, slice(None), lanes) + dot(d_products, inward, 1, 0)
    by_row = (d * unit).reshape(TOKENS // SUBLANES, SUBLANES, plan.chunk)
    outputs.weights.gain[s, :, lanes] += jnp.sum(by_row, axis=0)
    d = d * gain
    scratch.back[:, lanes] = d
    projected = d * unit
    for start in range(0, plan.chunk, LANES):
      total += projected[:, start : start + LANES]
    return total

  total = tiles.for_each_step(plan, step, jnp.zeros((TOKENS, LANES), jnp.float32))
  mean = jnp.sum(total, axis=1, keepdims=True) / plan.width
  mean = jnp.broadcast_to(mean, (TOKENS, plan.chunk))

  def finish(lanes: Span, _: None) -> None:
    unit = wide(given.streams, s, slice(None), lanes) * scale
    d = scale * (scratch.back[:, lanes] - unit * mean)
    if given.d_streams is not None:
      d += wide(given.d_streams, s, slice(None), lanes)
    outputs.streams[s, :, lanes] = d.astype(outputs.streams.dtype)

  tiles.for_each_step(plan, finish)
