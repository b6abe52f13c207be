"""Two-phase depth attention: completed sources once per depth block, then a merge per sublayer.

Phase 1 computes what all reads of a depth block get from the sources that were complete when it
began. Phase 2 merges one of these results with the only source that changed since, the running sum
of the depth block. Together they give what `depth_attention` gives over all these sources.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from resjax.base import Array, PyTree, wide_dtype
from resjax.base.sharding import Layout, cotangent
from resjax.kernels.depth_attention.operands import (
  MergeCotangents,
  MergeOperands,
  MergeStats,
  Operands,
  Read,
  Stats,
  check_gains,
)
from resjax.kernels.depth_attention.operation import BLOCK, MERGE
from resjax.kernels.depth_attention.sources import Sources
from resjax.kernels.operation import with_reverse


class BlockRead(NamedTuple):
  """The result of phase 1: all S reads of a depth block, of the completed sources alone.

  Attributes:
    out: outputs h_s [S, ..., D] in the dtype of the sources.
    lse: log Σ_n exp(s_sn) [S, ...], at least float32.
    inverse_rms: 1 / sqrt(mean(v_n²) + eps) of every slot [N, ...]; no gradient flows through it.
  """

  out: Array
  lse: Array
  inverse_rms: Array


def two_phase_moves_less(num_sources: float, num_sublayers: int) -> bool:
  """Returns whether two phases move fewer bytes than a direct read at every sublayer does.

  The forward pass of a depth block with c completed sources and S sublayers reads and writes this
  many arrays [..., D] if residual add and norm are fused into the reads. The first sublayer has no
  running sum yet:

  two phases: c + S in phase 1; 5 (S − 1): result of phase 1, running sum, addend, new sum, output
  direct:     c + 1 at first; (c + 4) (S − 1): sources, running sum, addend, new sum, output

  Two phases save (S − 1) (c − 2). The reverse pass with threaded sources moves 3 c + S in phase 1
  and 6 per merge; direct reads move 3 (c + 1) + 1 each, the first one 3 c + 1. Two phases save
  3 (S − 1) (c − 1). A merge moves 1/4 more per pass in bfloat16 (bf16_remainder.py). Both passes
  together save (S − 1) (4 c − 5 1/2) then.

  Args:
    num_sources: c, the number of completed sources, including the embedding; their mean if there
      are several depth blocks.
    num_sublayers: S, the number of sublayers of the depth block.
  """
  return num_sublayers > 1 and 4 * num_sources > 5.5


def depth_attention_block(
  sources: Sources | Sequence[Float[Array, "*tokens D"]],
  queries: Float[Array, "S D"],
  *,
  key_scales: Float[Array, "S D"] | None = None,
  eps: float = 1e-6,
  return_sources: bool = False,
  layout: Layout | None = None,
  implementation: str | None = None,
  interpret: Any = False,
) -> BlockRead | tuple[BlockRead, Sources]:
  """Phase 1: all S reads of a depth block over the completed sources, each source read once.

  s_sn = query_s · (key_scale_s ⊙ RMS(v_n)),  P_s = softmax_n(s_s),  h_s = Σ_n P_sn v_n

  The reverse pass keeps the sources and S (N + 1) + N numbers per token, where N is the number of
  slots; it does not read h_s. From the cotangents dh_s and dlse_s that the merges return:

  e_sn = ⟨dh_s, v_n⟩,  ds_sn = P_sn (e_sn − Σ_m P_sm e_sm + dlse_s),  g_s = query_s ⊙ key_scale_s
  dv_n = Σ_s (P_sn dh_s + ds_sn r_n g_s) − (Σ_s ds_sn s_sn) r_n² / D v_n,  r_n = inverse_rms
  dg_s = Σ_tokens Σ_n ds_sn r_n v_n

  Args:
    sources: c arrays, or `Sources`; at least one of them valid.
    queries: pseudo-queries.
    key_scales: gains of the key norm; None is 1.
    eps: number added to the mean square of a source.
    return_sources: whether the sources are returned too, to be threaded as in `depth_attention`.
    layout, implementation, interpret: as for `depth_attention`.

  Returns:
    `BlockRead`; with `return_sources` also the sources, which are the same arrays.

  Raises:
    ValueError: shapes or options do not fit, or the implementation cannot run, with the reason.

  Source: Attention Residuals, arXiv 2603.15031, section 4.
  """
  if not isinstance(sources, Sources):
    sources = Sources(recent=tuple(sources))
  operands = _block_operands(sources, queries, key_scales)
  read = _options(eps, False, return_sources, layout, interpret)
  read = BLOCK.choose(read, operands, implementation)
  block_read, threaded = _block(read, operands)
  if not return_sources:
    return block_read
  bank, recent = threaded
  return block_read, Sources(recent, bank, sources.num_valid)


def has_block_kernel(
  sources: Sources,
  queries: Float[Array, "S D"],
  *,
  layout: Layout | None = None,
  implementation: str | None = None,
) -> bool:
  """Returns whether `depth_attention_block` with threaded sources runs a kernel, not plain JAX.

  In plain JAX phase 1 is cut into as many passes over the sources as XLA likes. A step moves as
  much there as one with direct reads, and needs more memory.

  Args:
    sources: as for `depth_attention_block`; only their shapes are looked at.
    queries: as for `depth_attention_block`; only their shape [S, D] is looked at.
    layout, implementation: as for `depth_attention_block`.
  """
  read = _options(0.0, False, True, layout, False)
  return BLOCK.has_kernel(read, _block_operands(sources, queries, None), implementation)


def _block_operands(sources: Sources, queries: Array, key_scales: Array | None) -> Operands:
  """Returns the operands of phase 1; raises ValueError if arguments do not fit together."""
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
  slot: Int[Array, ""] | int,
  running: Float[Array, "*tokens D"],
  query: Float[Array, " D"],
  *,
  key_scale: Float[Array, " D"] | None = None,
  addend: Float[Array, "*tokens D"] | None = None,
  out_norm_scale: Float[Array, " D"] | None = None,
  eps: float = 1e-6,
  out_norm_eps: float | None = None,
  last_valid: Bool[Array, ""] | bool = True,
  layout: Layout | None = None,
  implementation: str | None = None,
  interpret: Any = False,
) -> tuple[Float[Array, "*tokens D"], Float[Array, "*tokens D"], BlockRead]:
  """Phase 2: one read of phase 1 with the running sum of the depth block as its last source.

  u = running + addend,  s = query · (key_scale ⊙ RMS(u)),  β = 1 / (1 + exp(lse − s))
  h = (1 − β) out + β u,  y = RMS(h) ⊙ out_norm_scale, or y = h without a gain
  where out and lse are row `slot` of the reads.

  The reverse pass keeps u, y and 4 numbers per token; in bfloat16 also four more bits of every
  element of y, see bf16_remainder.py. It does not read `out`, because
  (1 − β) ⟨dh, u − out⟩ = ⟨dh, u⟩ − ⟨dh, h⟩. With a norm it takes RMS(h) as y / out_norm_scale; a
  gain nearer to zero than 1e-19 (6e-5 in float16, 1e-154 in float64) is moved to that for this
  purpose. With r = 1/sqrt(mean(u²) + eps) and ρ = 1/sqrt(mean(h²) + out_norm_eps):

  c = mean(dy ⊙ y),  dh = ρ (out_norm_scale ⊙ dy − c RMS(h)),  ⟨dh, h⟩ = D c out_norm_eps ρ²
  ds = β (⟨dh, u⟩ − ⟨dh, h⟩),  dout = (1 − β) dh,  dlse = −ds,  g = query ⊙ key_scale
  du = β dh + ds r g − ds s r² / D u,  dg = Σ_tokens ds r u

  If y has b bits, so has ⟨dh, h⟩, and ds has a random error of 2^-b β |dh| |h|. At β near 1 both
  are small, and the error is as large as ds itself. b is 12 in bfloat16 and 11 in float16.

  The reads are returned so that the next merge can take them, like threaded sources. The reverse
  pass then overwrites one row of their cotangents, that of its own read, and leaves the others:
  arrays of S rows need not be added up. Each row may be merged once at most.

  Args:
    reads: result of phase 1.
    slot: index of the read that is merged, 0..S-1; may be traced.
    running: sum of the depth block before the addend.
    query: pseudo-query, the one that phase 1 had for this read.
    key_scale: gain of the key norm, the one that phase 1 had for this read; None is 1.
    addend: array that is added to the running sum first; None: nothing is.
    out_norm_scale: gain of an RMS norm of the output; None: the output is h.
    eps: number added to the mean square of u.
    out_norm_eps: number added to the mean square of h in its norm; default: eps.
    last_valid: whether the running sum counts; may be traced. A running sum that does not count
      may hold anything.
    layout, implementation, interpret: as for `depth_attention`.

  Returns:
    y in the dtype of `running`; u, to be used in place of `running` from here
    on, so that cotangents accumulate in one array; and the reads.

  Raises:
    ValueError: shapes or options do not fit, or the implementation cannot run, with the reason.

  Source: Attention Residuals, arXiv 2603.15031, section 4.
  """
  _check_merge(reads, slot, running, addend)
  gains = {"query": query, "key_scale": key_scale, "out_norm_scale": out_norm_scale}
  check_gains("running needs", running.shape[-1], **gains)
  scaled = query if key_scale is None else query * key_scale
  counts = jnp.stack([jnp.asarray(n, jnp.int32) for n in (last_valid, slot)])
  lse = reads.lse.astype(wide_dtype(running))
  operands = MergeOperands(reads.out, lse, running, counts, scaled, addend, out_norm_scale)
  read = _options(eps, addend is not None, True, layout, interpret)
  if out_norm_eps is not None:
    read = dataclasses.replace(read, out_norm_eps=out_norm_eps)
  read = MERGE.choose(read, operands, implementation)
  y, running, out, lse = _merge(read, operands)
  return y, running, reads._replace(out=out, lse=lse)


@jax.custom_vjp
def depth_attention_row(
  reads: BlockRead, slot: Int[Array, ""] | int
) -> tuple[Float[Array, "*tokens D"], BlockRead]:
  """One read of phase 1, where nothing has changed since: the sublayers add to no source.

  The reads are returned so that the next row can be taken of them, like threaded sources. The
  reverse pass then overwrites one row of their cotangents and leaves the others, see
  `depth_attention_merge`. Each row may be taken once at most.

  Args:
    reads: result of phase 1.
    slot: index of the read, 0..S-1; may be traced.

  Returns:
    Row `slot` of `reads.out`; and the reads.
  """
  return jax.lax.dynamic_index_in_dim(reads.out, slot, keepdims=False), reads


def _row_forward(reads: BlockRead, slot: Array | int) -> tuple[tuple[Array, BlockRead], Any]:
  return depth_attention_row(reads, slot), slot


def _row_backward(slot: Array | int, cotangents: tuple[Array, BlockRead]) -> tuple[BlockRead, None]:
  d_row, d_reads = cotangents
  d_out = jax.lax.dynamic_update_index_in_dim(d_reads.out, d_row, slot, 0)
  return d_reads._replace(out=d_out), None


depth_attention_row.defvjp(_row_forward, _row_backward)


def _options(eps: float, adds: bool, threaded: bool, layout: Layout | None, interpret: Any) -> Read:
  layout = Layout() if layout is None else layout
  return Read(1, eps, adds, threaded, eps, layout=layout, interpret=interpret)


def _block_forward(read: Read, operands: Operands) -> tuple[PyTree, tuple[Operands, Stats]]:
  out, stats = BLOCK.forward(read, operands)
  threaded = (operands.bank, operands.recent) if read.threaded else None
  return (BlockRead(out, stats.lse, stats.inverse_rms), threaded), (operands, stats)


def _block_backward(
  read: Read, residuals: tuple[Operands, Stats], cotangents: PyTree
) -> tuple[Operands]:
  operands, stats = residuals
  (d_out, d_lse, _), d_sources = cotangents
  d = BLOCK.backward(read, operands, stats, d_out, d_lse, d_sources)
  return (Operands(d.bank, d.recent, None, cotangent(d.query, operands.query), None, None),)


_block = with_reverse(_block_forward, _block_backward)


def _merge_forward(
  read: Read, operands: MergeOperands
) -> tuple[tuple[Array, Array, Array, Array], tuple[MergeOperands, Array, MergeStats]]:
  out, running, stats = MERGE.forward(read, operands)
  running = running if read.adds else operands.running
  kept = operands._replace(out=None, lse=None, running=running, addend=None)
  return (out, running, operands.out, operands.lse), (kept, out, stats)


def _merge_backward(
  read: Read, residuals: tuple[MergeOperands, Array, MergeStats], cotangents: PyTree
) -> tuple[MergeOperands]:
  operands, out, stats = residuals
  d_out, d_running, *d_reads = cotangents
  others = out, stats, d_out, d_running, tuple(d_reads)
  d: MergeCotangents = MERGE.backward(read, operands, *others)
  d_query = cotangent(d.query, operands.query)
  d_scale = jax.tree.map(cotangent, d.out_norm_scale, operands.out_norm_scale)  # may be None
  d_addend = d.running if read.adds else None
  return (MergeOperands(d.out, d.lse, d.running, None, d_query, d_addend, d_scale),)


_merge = with_reverse(_merge_forward, _merge_backward)


def _check_merge(reads: BlockRead, slot: Array | int, running: Array, addend: Array | None) -> None:
  """Raises ValueError if the arrays of a merge do not fit together, naming one of them."""
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
