"""A direct read: softmax attention of one query over all depth sources."""

from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import Bool, Float

from resjax.base import Array, PyTree
from resjax.base.sharding import Layout, cotangent
from resjax.kernels.depth_attention.operands import (
  Cotangents,
  Operands,
  Read,
  Stats,
  check_gains,
)
from resjax.kernels.depth_attention.operation import DIRECT
from resjax.kernels.depth_attention.sources import Sources
from resjax.kernels.operation import with_reverse


def depth_attention(
  sources: Sources | Sequence[Float[Array, "*tokens D"]],
  query: Float[Array, " D"],
  *,
  key_scale: Float[Array, " D"] | None = None,
  addend: Float[Array, "*tokens D"] | None = None,
  out_norm_scale: Float[Array, " D"] | None = None,
  num_heads: int = 1,
  eps: float = 1e-6,
  out_norm_eps: float | None = None,
  last_valid: Bool[Array, ""] | bool = True,
  return_sources: bool = False,
  layout: Layout | None = None,
  implementation: str | None = None,
  interpret: Any = False,
) -> Float[Array, "*tokens D"] | tuple[Float[Array, "*tokens D"], Sources]:
  """Softmax attention of one query over depth sources, separately for every token.

  s_n = query · (key_scale ⊙ RMS(v_n)),  p = softmax_n(s),  h = Σ_n p_n v_n
  with RMS(v) = v / sqrt(mean(v²) + eps). The values v_n are not normalised, and there is no factor
  1/√D. With H heads, head a owns C = D / H consecutive channels: its dot product s_an sums over
  these alone, it has its own softmax p_an over the sources, and it mixes its channels of v_n. The
  RMS is over all D. With `addend` the last source is v + addend; with `out_norm_scale` the output
  is RMS(h) ⊙ out_norm_scale.

  The query is multiplied by key_scale once, the norm is one number per source and token, and
  sources are summed one by one, so that no normalised or stacked copy of them exists. The reverse
  pass keeps the sources and (N + 1) H + N numbers per token, where N is the number of slots; in
  it ⟨·, ·⟩_a sums over the channels of head a:

  e_an = ⟨dh, v_n⟩_a,  ds_an = p_an (e_an − Σ_m p_am e_am),  g = query ⊙ key_scale
  r_n = 1/sqrt(mean(v_n²) + eps),   dg = Σ_tokens Σ_n ds_an r_n v_n
  dv_n = p_an dh + ds_an r_n g − (Σ_b ds_bn s_bn) r_n² / D v_n    (a: the head of the channel)

  Sources that several reads share should be threaded through them: `return_sources` returns the
  same arrays, and the next read should take these. Its reverse pass then hands over their
  cotangents, to which the reverse pass of this read adds its own. Otherwise one cotangent per
  source and read stays alive until all of them are summed.

  Args:
    sources: N arrays, or `Sources`; at least one of them valid.
    query: pseudo-query.
    key_scale: gain of the key norm; None is 1.
    addend: array that is added to the last of `sources` (of `Sources.recent`) first; it
      needs `return_sources`, because the sum is one of the returned sources.
    out_norm_scale: gain of an RMS norm of the output; None: the output is h.
    num_heads: H, a divisor of D.
    eps: number added to the mean square of a source.
    out_norm_eps: number added to the mean square of h in its norm; default: eps.
    last_valid: whether the last of `sources` (of `Sources.recent`) counts; may be traced.
    return_sources: whether the sources are returned too.
    layout: mesh, and how axes of [B, T, D] are split over it; default: one device.
    implementation: `reference` (any platform), `mosaic_tpu`, `mosaic_gpu` (Hopper and newer), or
      None, the best that can run on the platform of `layout`.
    interpret: if not False, a kernel runs in its interpreter, on any platform; it takes what the
      argument `interpret` of a Pallas call takes.

  Returns:
    h in the dtype of the sources; logits, softmax and sum are at least float32. With
    `return_sources` also the sources, with the addend in the last one.

  Raises:
    ValueError: shapes or options do not fit, or the implementation cannot run, with the reason.

  Source: Attention Residuals, arXiv 2603.15031, section 3; with heads, arXiv 2607.27230.
  """
  if not isinstance(sources, Sources):
    sources = Sources(recent=tuple(sources))
  gains = {"query": query, "key_scale": key_scale, "out_norm_scale": out_norm_scale}
  _check(sources, addend, num_heads, return_sources, **gains)
  counts = sources.counts(last_valid)
  scaled_query = query if key_scale is None else query * key_scale
  operands = Operands(sources.bank, sources.recent, counts, scaled_query, addend, out_norm_scale)
  read = Read(
    num_heads=num_heads,
    eps=eps,
    adds=addend is not None,
    threaded=return_sources,
    layout=Layout() if layout is None else layout,
    interpret=interpret,
    out_norm_eps=eps if out_norm_eps is None else out_norm_eps,
  )
  out, threaded = _read(DIRECT.choose(read, operands, implementation), operands)
  if not return_sources:
    return out
  bank, recent = threaded
  return out, Sources(recent, bank, sources.num_valid)


def _read_forward(read: Read, operands: Operands) -> tuple[PyTree, tuple[Operands, Stats]]:
  out, running, stats = DIRECT.forward(read, operands)
  recent = (*operands.recent[:-1], running) if read.adds else operands.recent
  kept = operands._replace(recent=recent, addend=None)
  threaded = (operands.bank, recent) if read.threaded else None
  return (out, threaded), (kept, stats)


def _read_backward(
  read: Read, residuals: tuple[Operands, Stats], cotangents: PyTree
) -> tuple[Operands]:
  operands, stats = residuals
  d: Cotangents = DIRECT.backward(read, operands, stats, *cotangents)
  d_query = cotangent(d.query, operands.query)
  d_addend = d.recent[-1] if read.adds else None
  d_scale = jax.tree.map(cotangent, d.out_norm_scale, operands.out_norm_scale)  # may be None
  return (Operands(d.bank, d.recent, None, d_query, d_addend, d_scale),)


_read = with_reverse(_read_forward, _read_backward)


def _check(
  sources: Sources,
  addend: Array | None,
  num_heads: int,
  return_sources: bool,
  **gains: Array | None,
) -> None:
  """Raises ValueError if arguments of `depth_attention` do not fit together, naming one of them."""
  sources.check_alike()
  shape = sources.shape
  check_gains("the sources need", shape[-1], **gains)
  if num_heads < 1 or shape[-1] % num_heads:
    raise ValueError(f"num_heads={num_heads} does not divide the width {shape[-1]} of the sources")
  if addend is None:
    return
  if not sources.recent or not return_sources:
    raise ValueError(
      "addend needs a last source in `recent` to join, and return_sources=True, which gives the sum"
    )
  if addend.shape != shape:
    raise ValueError(f"addend has shape {addend.shape}; the sources have {shape}")
