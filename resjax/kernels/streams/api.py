"""A read of residual streams, which also applies the write before it."""

from typing import Any

from jaxtyping import Float

from resjax.base import Array, PyTree
from resjax.base.sharding import Layout
from resjax.kernels.operation import with_reverse
from resjax.kernels.streams import operation
from resjax.kernels.streams.operands import Coefficients, Operands, Pending, Read, Stats


def stream_read(
  pending: Pending,
  projection: Float[Array, "... D K"] | None,
  parameters: PyTree,
  coefficients: Coefficients,
  site: int | None = None,
  *,
  norm_gain: Float[Array, " D"] | None = None,
  norm_eps: float = 1e-6,
  layout: Layout | None = None,
  implementation: str | None = None,
  interpret: Any = False,
) -> tuple[Float[Array, "*tokens D"], Float[Array, "R *tokens D"], Float[Array, " _ *tokens"]]:
  """Applies a pending write, and reads the streams for the next branch.

  H_r = Σ_s M_rs G_s + b_r o of the pending streams G,  z = H φ,  m_r = mean(H_r²),
  p, M', b' = coefficients(z, m, parameters),  x = Σ_r p_r H_r

  If the pending weights say what is read, x is that, and the weights of the next write end with
  Σ_r p_r M'_r and Σ_r p_r b'_r, which the next read reads; no kernel does that yet.

  With a gain the output is RMS(x) ⊙ gain. The reverse pass keeps G, o and the float32 numbers M, b,
  z and m per token. It computes H, x and the coefficients again:

  dx = p' of the norm,  dp_r = ⟨dx, H_r⟩,  dz, dm from dp, dM', db' through `coefficients`,
  dH_r ← dH_r + p_r dx + φ_r dz + 2 dm_r / D H_r,  dφ_r = Σ_tokens H_r dzᵀ,
  dM_rs = ⟨dH_r, G_s⟩,  db_r = ⟨dH_r, o⟩,  dG_s = Σ_r M_rs dH_r,  do = Σ_r b_r dH_r

  Args:
    pending: the streams [R, ..., D] and what is to be written to them, see `Pending`.
    projection: φ [R, D, K] of all streams together, z [K, ...]; or φ [D, K] for each stream by
      itself, z [R, K, ...]; None where coefficients do not depend on the token: z and m are None.
    parameters: a tree of float arrays that `coefficients` gets, with an axis of size 1 for each
      token axis behind their own.
    coefficients: a pure function, see `Coefficients`.
    site: if given, the projection is a stack of φ of all sites of a layer, [S, R, D, K] or
      [S, D, K], and this one of 0..S-1 is used. Kernels for TPUs take it out of the stack, which
      XLA would do with a copy. Without `site` an array [R, D, K] is one φ.
    norm_gain: gain of an RMS norm of x; None: there is no norm.
    norm_eps: number added to the mean square of x in its norm.
    layout: mesh, and how axes of [B, T, D] are split over it; default: one device.
    implementation: `reference` (any platform), `mosaic_tpu`, `mosaic_gpu`, or None, the best that
      can run on the platform of `layout`.
    interpret: if not False, a kernel runs in its interpreter, on any platform.

  Returns:
    x and the streams H in the dtype of the streams; and the weights of the next write, M' and b'
    as in `Pending.weights`.

  Raises:
    ValueError: shapes do not fit, there is no such site, or the implementation cannot run, with the
      reason.
  """
  if site is None:
    site, projection = 0, None if projection is None else projection[None]
  operands = Operands(pending, projection, parameters, norm_gain)
  _check(operands, site)
  layout = Layout() if layout is None else layout
  read = Read(coefficients, site, norm_eps, layout=layout, interpret=interpret)
  return _read(operation.choose(read, operands, implementation), operands)


def _read_forward(
  read: Read, operands: Operands
) -> tuple[tuple[Array, Array, Array], tuple[Operands, Stats]]:
  x, streams, mixing, stats = operation.forward_if_used(read, operands)
  return (x, streams, mixing), (operands, stats)


def _read_backward(
  read: Read, residuals: tuple[Operands, Stats], cotangents: tuple[Array, Array, Array]
) -> tuple[Operands]:
  return (operation.backward(read, *residuals, *cotangents),)


_read = with_reverse(_read_forward, _read_backward)


def _check(operands: Operands, site: int) -> None:
  """Raises ValueError if arrays do not fit together, naming one of them."""
  (streams, weights, out), projection, _, gain = operands
  count, *tokens, width = streams.shape
  wanted = {
    "pending.weights": (weights, [(rows * (count + 1), *tokens) for rows in (count, count + 1)]),
    "pending.out": (out, [(*tokens, width)]),
    "norm_gain": (gain, [(width,)]),
  }
  for name, (array, shapes) in wanted.items():
    if array is not None and array.shape not in shapes:
      raise ValueError(f"{name} has shape {array.shape}; streams {streams.shape} need {shapes[0]}")
  if projection is None:
    return
  if projection.shape[1:-1] not in ((count, width), (width,)):
    raise ValueError(
      f"projection has shape {projection.shape[1:]}; streams {streams.shape} need "
      f"({count}, {width}, K) or ({width}, K)"
    )
  if not 0 <= site < len(projection):
    raise ValueError(
      f"site={site} of a projection of {len(projection)} sites; it takes 0 to {len(projection) - 1}"
    )
