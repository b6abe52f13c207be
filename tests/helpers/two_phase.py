"""A depth block by direct reads and by two phases, and inputs for it."""

import jax
import jax.numpy as jnp
import numpy as np

from resjax.kernels.depth_attention import (
  BlockRead,
  Sources,
  depth_attention,
  depth_attention_block,
  depth_attention_merge,
)
from tests.helpers import reference

D, TOKENS, EPS = 16, (2, 3), 1e-6


def example(count, num_reads, seed=0):
  """Queries, key gains, sources, addends (the first is a running sum), output gains; float64."""
  rng = np.random.default_rng(seed)
  shapes = (num_reads, D), (num_reads, D), (count, *TOKENS, D), (num_reads, *TOKENS, D)
  return [rng.normal(size=shape) for shape in (*shapes, (num_reads, D))]


def rounded(arrays, dtype):
  """The arrays in float32, sources and addends in `dtype`."""
  queries, gains, sources, addends, out_gains = [jnp.asarray(a, jnp.float32) for a in arrays]
  return queries, gains, sources.astype(dtype), addends.astype(dtype), out_gains


def wide(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def as_sources(sources, num_banked):
  if not num_banked:
    return Sources(tuple(sources))
  return Sources(tuple(sources[num_banked:]), sources[:num_banked], num_banked)


def direct(queries, gains, sources, addends, out_gains, norm=True):
  """A depth block: sublayer s reads the sources and the sum of addends[:s], if there is any."""
  running, outs = None, []
  for s, query in enumerate(queries):
    threaded = [*sources, *([] if running is None else [running])]
    options = {"addend": addends[s]} if s > 1 else {}
    norm_scale = out_gains[s] if norm else None
    out, threaded = depth_attention(
      threaded, query, key_scale=gains[s], out_norm_scale=norm_scale, eps=EPS,
      return_sources=True, **options,
    )  # fmt: skip
    running = addends[1] if s == 0 and len(addends) > 1 else threaded.recent[-1]
    sources = threaded.recent[: len(sources)]
    outs.append(out)
  return jnp.stack(outs), running


def two_phase(queries, gains, sources, addends, out_gains, norm=True, num_banked=0, **options):
  """The same with one read of the sources; the first sublayer has a running sum of NaN."""
  phase1 = depth_attention_block(
    as_sources(sources, num_banked), queries, key_scales=gains, eps=EPS, **options
  )
  running, outs = jnp.full_like(addends[0], jnp.nan), []
  for s, query in enumerate(queries):
    out, running, phase1 = depth_attention_merge(
      phase1, s, running, query, key_scale=gains[s],
      addend=addends[s] if s > 1 else None, out_norm_scale=out_gains[s] if norm else None,
      eps=EPS, last_valid=s > 0, **options,
    )  # fmt: skip
    running = addends[1] if s == 0 and len(addends) > 1 else running
    outs.append(out)
  return jnp.stack(outs), running


def one_read(out, lse):
  """A `BlockRead` of one read."""
  return BlockRead(out[None], lse[None], None)


def numpy_block(queries, gains, sources, addends, out_gains, norm=True):
  outs = []
  for s, query in enumerate(queries):
    values = [*sources, *([sum(addends[1 : s + 1])] if s else [])]
    h = reference.depth_read(query, gains[s], values, EPS)
    outs.append(out_gains[s] * reference.rms(h, EPS) if norm else h)
  return np.stack(outs)


def cotangents(num_reads, dtype):
  """Of the outputs and of the final running sum, which a block of one sublayer has none of."""
  rng = np.random.default_rng(9)
  d_outs, d_running = rng.normal(size=(num_reads, *TOKENS, D)), rng.normal(size=(*TOKENS, D))
  if num_reads == 1:
    d_running = np.zeros_like(d_running)
  return jnp.asarray(d_outs, dtype), jnp.asarray(d_running, dtype)
