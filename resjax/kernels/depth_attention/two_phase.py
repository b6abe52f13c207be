"""Two-phase depth attention: completed sources once per depth block, then a merge per sublayer."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from resjax.kernels.depth_attention import backends, two_phase_backends
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.kernels.depth_attention.sources import Sources
from resjax.kernels.depth_attention.two_phase_operands import MergeOperands
from resjax.sharding import Layout
from resjax.typing import Array, wide_dtype


class BlockRead(NamedTuple):
  """Phase 1: what all S reads of a depth block get from the completed sources.

  Attributes:
    out: h_s [S, ..., D] in the dtype of the sources.
    lse: log Σ_n exp(s_sn) [S, ...], at least float32.
    inverse_rms: 1 / sqrt(mean(v_n²) + eps) of every slot [N, ...]; no gradient flows through it.
  """

  out: Array
  lse: Array
  inverse_rms: Array


def two_phase_moves_less(num_sources: float, num_sublayers: int) -> bool:
  """Whether two phases move fewer bytes through memory than a direct read at every sublayer.

  In arrays [..., D] read or written by the forward pass of a depth block, with c completed sources
  and S sublayers, add and norm fused; the first sublayer has no running sum yet:

  two phases: c + S (phase 1), and 5 (S − 1): result of phase 1, running sum, addend; sum, output
  direct:     c + 1, and (c + 4) (S − 1): sources, running sum, addend; sum, output

  The difference is (S − 1) (c − 2), less (S − 1) / 4 in bfloat16 (low_bits.py). In the reverse
  pass, sources threaded, it is 3 (S − 1) (c − 1) (phase 1: 3 c + S, a merge 6; direct 3 (c + 1) + 1
  and 3 c + 1), less the same, so where the forward pass gains, that does too.

  Args:
    num_sources: c, completed sources, the embedding among them.
    num_sublayers: S, of the depth block.
  """
  return num_sublayers > 1 and num_sources > 2


def depth_attention_block(
  sources: Sources | Sequence[Array],
  queries: Array,
  *,
  key_scales: Array | None = None,
  eps: float = 1e-6,
  return_sources: bool = False,
  layout: Layout | None = None,
  implementation: str | None = None,
  interpret: Any = False,
) -> BlockRead | tuple[BlockRead, Sources]:
  """Phase 1: all S reads of a depth block over the completed sources, each source read once.

  s_sn = query_s · (key_scale_s ⊙ RMS(v_n)),  P_s = softmax_n(s_s),  h_s = Σ_n P_sn v_n

  The reverse pass keeps the sources and S (N + 1) + N numbers per token, N the number of slots,
  and reads no h_s. From the cotangents dh_s and dlse_s that `depth_attention_merge` returns:

  e_sn = ⟨dh_s, v_n⟩,  ds_sn = P_sn (e_sn − Σ_m P_sm e_sm + dlse_s),  g_s = query_s ⊙ key_scale_s
  dv_n = Σ_s (P_sn dh_s + ds_sn r_n g_s) − (Σ_s ds_sn s_sn) r_n² / D v_n,  r_n = inverse_rms
  dg_s = Σ_tokens Σ_n ds_sn r_n v_n

  Args:
    sources: c arrays [..., D], or `Sources`; at least one of them valid.
    queries: pseudo-queries [S, D].
    key_scales: gains of the key norm [S, D]; None is 1.
    eps: added to the mean square of a source.
    return_sources: whether the sources are returned too, to be threaded as in `depth_attention`.
    layout: mesh, and how axes of [B, T, D] are split over it; default: one device.
    implementation: `reference` (any platform), `mosaic_tpu`, `mosaic_gpu` (Hopper and newer), or
      None, the best that can run on the platform of `layout`.
    interpret: runs a kernel in its interpreter on any platform; what the `interpret` of a Pallas
      call takes.

  Returns:
    `BlockRead`; with `return_sources` also the same sources.

  Raises:
    ValueError: shapes or options do not fit, or the implementation cannot run, with the reason.

  Source: Attention Residuals, arXiv 2603.15031, section 4.
  """
  if not isinstance(sources, Sources):
    sources = Sources(recent=tuple(sources))
  operands = _block_operands(sources, queries, key_scales)
  read = _read(eps, False, return_sources, layout, interpret)
  read = backends.choose(read, operands, implementation, "block")
  block_read, threaded = _block(read, operands)
  if not return_sources:
    return block_read
  bank, recent = threaded
  return block_read, Sources(recent, bank, sources.num_valid)


def has_block_kernel(
  sources: Sources,
  queries: Array,
  *,
  layout: Layout | None = None,
  implementation: str | None = None,
) -> bool:
  """Whether `depth_attention_block`, sources threaded, takes a kernel and not the reference.

  Args:
    sources: as for `depth_attention_block`; their shapes are looked at.
    queries: [S, D], the same.
    layout: as for `depth_attention_block`.
    implementation: as for `depth_attention_block`.
  """
  read = _read(0.0, False, True, layout, False)
  operands = _block_operands(sources, queries, None)
  return backends.has_kernel(read, operands, implementation, "block")


def _block_operands(sources: Sources, queries: Array, key_scales: Array | None) -> Operands:
  """Refuses what does not fit together, naming the argument."""
  sources.check_alike()
  width = sources.shape[-1]
  if queries.ndim != 2 or queries.shape[1] != width or not len(queries):
    raise ValueError(f"queries has shape {queries.shape}; the sources need (S, {width}), S >= 1")
  if key_scales is not None and key_scales.shape != queries.shape:
    raise ValueError(f"key_scales has shape {key_scales.shape}; queries has {queries.shape}")
  scaled = queries if key_scales is None else queries * key_scales
  return Operands(sources.bank, sources.recent, sources.counts(), scaled, None, None)


def depth_attention_merge(
  reads: BlockRead,
  slot: Array | int,
  running: Array,
  query: Array,
  *,
  key_scale: Array | None = None,
  addend: Array | None = None,
  out_norm_scale: Array | None = None,
  eps: float = 1e-6,
  last_valid: Array | bool = True,
  layout: Layout | None = None,
  implementation: str | None = None,
  interpret: Any = False,
) -> tuple[Array, Array, BlockRead]:
  """Phase 2: one read of phase 1 with the running sum of the depth block as its last source.

  u = running + addend,  s = query · (key_scale ⊙ RMS(u)),  β = 1 / (1 + exp(lse − s))
  h = (1 − β) out + β u,  y = RMS(h) ⊙ out_norm_scale, or h without that; out, lse: row `slot`

  The reverse pass keeps u, y and 4 numbers per token (in bfloat16 also four more bits of every
  element of y, see low_bits.py), and does not read `out`:
  (1 − β) ⟨dh, u − out⟩ = ⟨dh, u⟩ − ⟨dh, h⟩ has no `out` in it. With the norm RMS(h) is
  y / out_norm_scale, and so that this can be taken, a gain nearer to zero than 1e-19 (6e-5 in
  float16, 1e-154 in float64) counts as that; r = 1/sqrt(mean(u²) + eps), ρ that of h:

  c = mean(dy ⊙ y),  dh = ρ (out_norm_scale ⊙ dy − c RMS(h)),  ⟨dh, h⟩ = D c eps ρ²
  ds = β (⟨dh, u⟩ − ⟨dh, h⟩),  dout = (1 − β) dh,  dlse = −ds,  g = query ⊙ key_scale
  du = β dh + ds r g − ds s r² / D u,  dg = Σ_tokens ds r u

  With b bits of y, ⟨dh, h⟩ has as many: ds has a random error of 2^-b β |dh| |h|, which at β near
  1 is as large as ds itself, both being small. b is 12 in bfloat16, 11 in float16.

  The reads are returned to be handed to the next merge, like threaded sources. The reverse pass
  then writes the cotangent of its row into theirs, whatever stood there, and leaves the others: no
  array of S rows is added up, and a row is merged once at most.

  Args:
    reads: of phase 1.
    slot: which of them, 0..S-1; may be traced.
    running: sum of the depth block before the addend [..., D].
    query: pseudo-query [D], the one that phase 1 had.
    key_scale: gain of the key norm [D], the one that phase 1 had; None is 1.
    addend: [..., D], what joins the running sum first; None: nothing.
    out_norm_scale: gain [D] of an RMS norm of the output; None: the output is h.
    eps: added to the mean square of u, and of h.
    last_valid: whether the running sum counts; may be traced. Where it does not it may hold
      anything.
    layout: mesh, and how axes of [B, T, D] are split over it; default: one device.
    implementation: `reference` (any platform), `mosaic_tpu`, `mosaic_gpu` (Hopper and newer), or
      None, the best that can run on the platform of `layout`.
    interpret: runs a kernel in its interpreter on any platform; what the `interpret` of a Pallas
      call takes.

  Returns:
    y [..., D] in the dtype of `running`; u, to be used in its place, so that its cotangent is
    accumulated; and the reads.

  Raises:
    ValueError: shapes or options do not fit, or the implementation cannot run, with the reason.

  Source: Attention Residuals, arXiv 2603.15031, section 4.
  """
  _check_merge(reads, slot, running, addend, query, key_scale, out_norm_scale)
  scaled = query if key_scale is None else query * key_scale
  counts = jnp.stack([jnp.asarray(n, jnp.int32) for n in (last_valid, slot)])
  lse = reads.lse.astype(wide_dtype(running))
  operands = MergeOperands(reads.out, lse, running, counts, scaled, addend, out_norm_scale)
  read = _read(eps, addend is not None, True, layout, interpret)
  read = backends.choose(read, operands, implementation, "merge")
  y, running, out, lse = _merge(read, operands)
  return y, running, reads._replace(out=out, lse=lse)


def _read(eps, adds, threaded, layout, interpret) -> Read:
  layout = Layout() if layout is None else layout
  return Read(1, eps, adds, threaded, "", layout, interpret)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _block(read: Read, operands: Operands):
  """Returns a `BlockRead`, and bank and recent sources where they are threaded."""
  return _block_forward(read, operands)[0]


def _block_forward(read, operands):
  out, stats = two_phase_backends.block_forward(read, operands)
  threaded = (operands.bank, operands.recent) if read.threaded else None
  return (BlockRead(out, stats.lse, stats.inverse_rms), threaded), (operands, stats)


def _block_backward(read, residuals, cotangents):
  operands, stats = residuals
  (d_out, d_lse, _), d_sources = cotangents
  d = two_phase_backends.block_backward(read, operands, stats, d_out, d_lse, d_sources)
  return (Operands(d.bank, d.recent, None, d.query.astype(operands.query.dtype), None, None),)


_block.defvjp(_block_forward, _block_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _merge(read: Read, operands: MergeOperands):
  """Returns the output, the running sum, and out and lse of phase 1."""
  return _merge_forward(read, operands)[0]


def _merge_forward(read, operands):
  out, running, stats = two_phase_backends.merge_forward(read, operands)
  running = running if read.adds else operands.running
  kept = operands._replace(out=None, lse=None, running=running, addend=None)
  return (out, running, operands.out, operands.lse), (kept, out, stats)


def _merge_backward(read, residuals, cotangents):
  operands, out, stats = residuals
  d_out, d_running, *d_reads = cotangents
  d = two_phase_backends.merge_backward(
    read, operands, out, stats, d_out, d_running, tuple(d_reads)
  )
  d_query, d_scale = d.query.astype(operands.query.dtype), d.out_norm_scale
  if d_scale is not None:
    d_scale = d_scale.astype(operands.out_norm_scale.dtype)
  d_addend = d.running if read.adds else None
  return (MergeOperands(d.out, d.lse, d.running, None, d_query, d_addend, d_scale),)


_merge.defvjp(_merge_forward, _merge_backward)


def _check_merge(reads, slot, running, addend, query, key_scale, out_norm_scale) -> None:
  """Refuses what does not fit together, naming the argument."""
  shape, dtype, count = running.shape, running.dtype, len(reads.out)
  pairs = {"reads.out": (reads.out, (count, *shape)), "addend": (addend, shape)}
  for name, (array, needed) in pairs.items():
    if array is not None and (array.shape != needed or array.dtype != dtype):
      raise ValueError(
        f"{name} is {array.dtype}{list(array.shape)}; running is {dtype}{list(shape)}, with which "
        f"it must be {dtype}{list(needed)}"
      )
  if reads.lse.shape != (count, *shape[:-1]):
    raise ValueError(f"reads.lse has shape {reads.lse.shape}; it needs {(count, *shape[:-1])}")
  if isinstance(slot, int | np.integer) and not 0 <= slot < count:
    raise ValueError(f"slot={slot}; phase 1 has {count} reads, 0..{count - 1}")
  gains = {"query": query, "key_scale": key_scale, "out_norm_scale": out_norm_scale}
  for name, gain in gains.items():
    if gain is not None and gain.shape != shape[-1:]:
      raise ValueError(f"{name} has shape {gain.shape}; running needs ({shape[-1]},)")
