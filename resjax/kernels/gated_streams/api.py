"""A read of residual streams through gates of low rank."""

from typing import Any

from jaxtyping import Float

from resjax.base import Array
from resjax.base.sharding import Layout
from resjax.kernels.gated_streams import reference
from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.gated_streams.operation import READ
from resjax.kernels.operation import with_reverse

_Results = tuple[Array, Array | None, Array | None]


def gated_read(
  streams: Float[Array, "R *tokens D"],
  gain: Float[Array, "#R D"],
  down: Float[Array, "R D r"],
  up: Float[Array, "R r D"],
  inject: Float[Array, "R D R"] | None,
  *,
  eps: float = 1e-6,
  layout: Layout | None = None,
  implementation: str | None = None,
  interpret: Any = False,
) -> tuple[
  Float[Array, "*tokens D"], Float[Array, " R *tokens"] | None, Float[Array, "R *tokens D"] | None
]:
  """Reads streams through a gate per channel, and projects them to a number per stream.

  R̂_s = RMS(H_s) ⊙ γ_s,  z = Σ_s R̂_s W_down_s / R,  G_s = σ(silu(z) W_up_s),
  x = Σ_s G_s ⊙ R̂_s / R,  logits = Σ_s R̂_s W_inject_s / R

  The reverse pass keeps H and z, r float32 numbers per token, and computes the rest again. Factors
  of products are rounded to the dtype of the streams; sums, norms and mixes are float32.

  Args:
    streams: H.
    gain: γ; with a first axis of 1, all streams share it.
    down: W_down.
    up: W_up.
    inject: W_inject; None where nothing is written after the read.
    eps: number added to the mean square of a stream in its norm.
    layout: mesh, and how axes of [B, T, D] are split over it; default: one device.
    implementation: `reference` (any platform), `mosaic_tpu`, `mosaic_gpu`, or None, the best that
      can run on the platform of `layout`.
    interpret: if not False, a kernel runs in its interpreter, on any platform.

  Returns:
    x in the dtype of the streams; the logits, float32 or wider; and the streams,
    for who writes to them: the reverse kernel adds what flows back to these, which otherwise is one
    more pass. The last two are None without W_inject.

  Raises:
    ValueError: shapes do not fit, or the implementation cannot run, with the reason.

  Source: arXiv 2608.30320, eq. 21-34 (Qwen3.8-Flash-Next).
  """
  operands = Operands(streams, gain, down, up, inject)
  _check(operands)
  layout = Layout() if layout is None else layout
  read = READ.choose(Read(eps, layout=layout, interpret=interpret), operands, implementation)
  if read.implementation == "reference":
    return *reference.read(eps, operands), _written_to(operands)
  return _read(read, operands)


def _written_to(operands: Operands) -> Array | None:
  return None if operands.inject is None else operands.streams


def _read_forward(read: Read, operands: Operands) -> tuple[_Results, tuple[Operands, Array]]:
  x, logits, squeezed = READ.forward(read, operands)
  return (x, logits, _written_to(operands)), (operands, squeezed)


def _read_backward(
  read: Read, residuals: tuple[Operands, Array], cotangents: _Results
) -> tuple[Operands]:
  operands, squeezed = residuals
  return (READ.backward(read, operands, squeezed, *cotangents),)


_read = with_reverse(_read_forward, _read_backward)


def _check(operands: Operands) -> None:
  """Raises ValueError if arrays do not fit together, naming one of them."""
  streams, gain, down, up, inject = operands
  count, width, rank = len(streams), streams.shape[-1], down.shape[-1]
  wanted: dict[str, tuple[Array | None, list[tuple[int, ...]]]] = {
    "gain": (gain, [(count, width), (1, width)]),
    "down": (down, [(count, width, rank)]),
    "up": (up, [(count, rank, width)]),
    "inject": (inject, [(count, width, count)]),
  }
  for name, (array, shapes) in wanted.items():
    if array is not None and array.shape not in shapes:
      raise ValueError(
        f"{name} has shape {array.shape}; streams {streams.shape} of rank {rank} need "
        f"{' or '.join(map(str, shapes))}"
      )
