"""The forward kernel for TPUs: streams are loaded once, and what is read is written once."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.kernels.gated_streams.mosaic_tpu import plan as tiles
from resjax.kernels.gated_streams.mosaic_tpu.plan import Plan, Weights
from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.mosaic_tpu import TOKENS, Span, call, columns, dot, wide


class _Outputs(NamedTuple):
  """The outputs of the forward kernel.

  Attributes:
    x: the read [T, D].
    logits: [R, T] float32, or None.
    squeezed: z [T, rank] float32.
  """

  x: Any
  logits: Any
  squeezed: Any


class _Scratch(NamedTuple):
  """Buffers in VMEM.

  Attributes:
    scales: 1 / RMS of every stream, see `Plan.scales`.
    products: Σ_s R̂_s [W_down_s, W_inject_s] [TOKENS, rows] float32.
    inner: silu(z) [TOKENS, rank].
  """

  scales: Any
  products: Any
  inner: Any


@call.on_one_device
def forward(read: Read, operands: Operands) -> tuple[Array, Array | None, Array]:
  """Runs the forward pass, see operation.py."""
  plan = Plan.of(read, operands)
  weights = plan.weights(operands)
  logits, logits_spec = None, None
  if plan.injected:
    logits = plan.like(plan.num_streams, plan.num_tokens, dtype=jnp.float32)
    logits_spec = plan.logits()
  found = plan.run(
    read, lambda *refs: _run(read, plan, *refs), "gated_read_forward",
    (operands.streams, weights),
    in_specs=(plan.streams(plan.buffers), plan.whole(weights)),
    out_specs=_Outputs(plan.tokens(plan.buffers), logits_spec, plan.squeezed()),
    out_shape=_Outputs(
      plan.like(plan.num_tokens, plan.width), logits,
      plan.like(plan.num_tokens, plan.rank, dtype=jnp.float32),
    ),
    scratch=_Scratch(
      plan.scales(),
      pltpu.VMEM((TOKENS, plan.rows), jnp.float32),
      pltpu.VMEM((TOKENS, plan.rank), plan.dtype),
    ),
    vmem_limit=plan.vmem_limit,
    cost=plan.cost(plan.rows + plan.rank, plan.num_streams + 1, summed=False),
  )  # fmt: skip
  return found.x, found.logits, found.squeezed


def _run(
  read: Read, plan: Plan, streams: Any, weights: Weights, outputs: _Outputs, scratch: _Scratch
) -> None:
  """Reads the streams of one tile of tokens."""
  tiles.find_scales(plan, read.eps, streams, scratch.scales)
  _project(plan, streams, weights, scratch)
  squeezed = scratch.products[:, : plan.rank] / plan.num_streams
  outputs.squeezed[...] = squeezed
  scratch.inner[...] = jax.nn.silu(squeezed).astype(plan.dtype)
  if plan.injected:
    logits = columns.turned(scratch.products[:, plan.rank :])[: plan.num_streams]
    outputs.logits[...] = logits / plan.num_streams
  _mix(plan, streams, weights, outputs, scratch)


def _project(plan: Plan, streams: Any, weights: Weights, scratch: _Scratch) -> None:
  """Writes the products of all normalised streams."""
  scratch.products[...] = jnp.zeros_like(scratch.products)

  def step(lanes: Span, _: None) -> None:
    def stream(s: Array, _: None) -> None:
      normed = wide(streams, s, slice(None), lanes) * scratch.scales[s] * weights.gain[s, :, lanes]
      found = dot(normed.astype(plan.dtype), weights.inward[s, :, lanes], 1, 1)
      scratch.products[...] += found

    tiles.for_each_stream(plan.num_streams, stream)

  tiles.for_each_step(plan, step)


def _mix(plan: Plan, streams: Any, weights: Weights, outputs: _Outputs, scratch: _Scratch) -> None:
  """Writes the read, the gated mean of the normalised streams."""

  def step(lanes: Span, _: None) -> None:
    def stream(s: Array, total: Array) -> Array:
      normed = wide(streams, s, slice(None), lanes) * scratch.scales[s] * weights.gain[s, :, lanes]
      gate = jax.nn.sigmoid(dot(scratch.inner[...], weights.outward[s, :, lanes], 1, 0))
      return total + gate * normed

    total = jnp.zeros((TOKENS, plan.chunk), jnp.float32)
    total = tiles.for_each_stream(plan.num_streams, stream, total)
    outputs.x[:, lanes] = (total / plan.num_streams).astype(outputs.x.dtype)

  tiles.for_each_step(plan, step)
