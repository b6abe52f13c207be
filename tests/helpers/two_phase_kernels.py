"""Both phases by a kernel in its interpreter, against the reference in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from resjax.kernels.depth_attention import (
  BlockRead,
  Sources,
  depth_attention_block,
  depth_attention_merge,
)
from resjax.testing.compare import assert_close

EPS = 1e-6
NARROW, FORWARD, GRADIENT = 4e-3, 2e-6, 1e-5


def normal(*shape, dtype=np.float32, seed=0):
  return jax.device_put(np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype))


def wide(tree):
  """In float64, except for what counts."""
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def block_example(num_reads, num_banked, num_recent, tokens, width=128, dtype=np.float32):
  """Queries, gains, bank, recent sources; cotangents of `BlockRead` and of the sources."""

  def sources(seed):
    bank = normal(num_banked, *tokens, width, dtype=dtype, seed=seed) if num_banked else None
    recent = [normal(*tokens, width, dtype=dtype, seed=seed + k + 1) for k in range(num_recent)]
    return bank, tuple(recent)

  queries = normal(num_reads, width) / np.float32(np.sqrt(width))
  d_out = normal(num_reads, *tokens, width, dtype=dtype, seed=30)
  d_read = BlockRead(d_out, normal(num_reads, *tokens, seed=31), None)
  return (queries, normal(num_reads, width, seed=1), *sources(2)), (d_read, *sources(40))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def block(implementation, interpret, threaded, num_valid, operands, cotangents):
  """Phase 1 and its gradients."""

  def read(queries, gains, bank, recent):
    got = depth_attention_block(
      Sources(recent, bank, num_valid), queries, key_scales=gains, eps=EPS,
      return_sources=threaded, implementation=implementation, interpret=interpret,
    )  # fmt: skip
    return (got[0], (got[1].bank, got[1].recent)) if threaded else (got, None)

  got, vjp = jax.vjp(read, *operands)
  d_read, *d_sources = cotangents
  d_read = d_read._replace(inverse_rms=jnp.zeros_like(got[0].inverse_rms))
  return got[0], vjp((d_read, tuple(d_sources) if threaded else None))


def in_float64(run, *trees):
  with jax.enable_x64(True):
    return run(*jax.device_put(wide(trees)))


def merge_example(tokens, width, dtype, adds, normed):
  """Operands by name, and cotangents of the output, the running sum, and the three reads."""

  def reads(seed):
    out = normal(3, *tokens, width, dtype=dtype, seed=seed)
    return BlockRead(out, 1 + normal(3, *tokens, seed=seed + 1), None)

  operands = {
    "reads": reads(1),
    "running": normal(*tokens, width, dtype=dtype, seed=3),
    "query": normal(width, seed=4) / np.float32(np.sqrt(width)),
  }
  if adds:
    operands["addend"] = normal(*tokens, width, dtype=dtype, seed=5)
  if normed:
    operands["out_norm_scale"] = normal(width, seed=6)
  d = (normal(*tokens, width, dtype=dtype, seed=seed) for seed in (7, 8))
  return operands, (*d, reads(9))


@functools.partial(jax.jit, static_argnums=(0, 1))
def merge(implementation, interpret, last_valid, operands, cotangents):
  """A merge and its gradients."""

  def run(operands):
    return depth_attention_merge(
      slot=1, **operands, eps=EPS, last_valid=last_valid, implementation=implementation,
      interpret=interpret,
    )  # fmt: skip

  got, vjp = jax.vjp(run, operands)
  return got, vjp(cotangents)[0]


def chain(layout, implementation, interpret, queries, bank, addends, gain):
  """A depth block of as many sublayers as queries, its addends given."""
  options = {"layout": layout, "implementation": implementation, "interpret": interpret}
  phase1, sources = depth_attention_block(
    Sources((), bank, 2), queries, return_sources=True, **options
  )
  running, total = jnp.zeros_like(addends[0]), 0.0
  for s, query in enumerate(queries):
    y, running, phase1 = depth_attention_merge(
      phase1, s, running, query, addend=addends[s], out_norm_scale=gain,
      last_valid=s > 0, **options,
    )  # fmt: skip
    total += jnp.sum(jnp.sin(y))
  return total + jnp.sum(jnp.cos(sources.bank[:2])), y


def check_block(
  implementation, interpret, num_reads, num_banked, num_recent, num_valid, tokens, width, dtype,
  threaded,
):  # fmt: skip
  """Phase 1 and its gradients; slots that do not count hold NaN."""
  operands, cotangents = block_example(num_reads, num_banked, num_recent, tokens, width, dtype)
  reference = functools.partial(block, "reference", False, threaded, num_valid)
  want, wants = in_float64(reference, operands, cotangents)
  queries, gains, bank, recent = operands
  if num_banked:
    bank = bank.at[num_valid:].set(jnp.nan)
  got, gradients = block(
    implementation, interpret, threaded, num_valid, (queries, gains, bank, recent), cotangents
  )
  exact = dtype == np.float32
  assert_close(got.out, want.out, FORWARD if exact else NARROW)
  assert_close(got.lse, want.lse, FORWARD)
  valid = np.r_[:num_valid, num_banked : num_banked + num_recent]
  assert_close(got.inverse_rms[valid], want.inverse_rms[valid], FORWARD)
  assert_close(gradients, wants, GRADIENT if exact else NARROW)
  if num_banked:  # nothing is added to what is not valid
    passed = cotangents[1][num_valid:] if threaded else 0
    np.testing.assert_array_equal(gradients[2][num_valid:], passed)


def check_merge(implementation, interpret, tokens, width, dtype, adds, normed, last_valid):
  """A merge and its gradients; a running sum that does not count is NaN."""
  operands, cotangents = merge_example(tokens, width, dtype, adds, normed)
  rounded = dict(operands)
  if adds:  # the reverse pass takes the sum as it is rounded
    rounded["running"] = (operands["running"] + operands["addend"]).astype(dtype)
    rounded["addend"] = jnp.zeros_like(operands["addend"])
  reference = functools.partial(merge, "reference", False, last_valid)
  want, wants = in_float64(reference, rounded, cotangents)
  if not last_valid:
    operands["running"] = operands["running"] * jnp.nan
  got, gradients = merge(implementation, interpret, last_valid, operands, cotangents)
  exact = dtype == np.float32
  assert_close(got[0], want[0], FORWARD if exact else NARROW)
  if last_valid:
    np.testing.assert_array_equal(np.float64(got[1]), want[1])
  assert_close(gradients, wants, GRADIENT if exact else NARROW)
  if dtype == jnp.bfloat16:
    # Sums of the same numbers of 12 bits; of 8 bits they would be 1e-3 away.
    _, same = merge("reference", False, last_valid, rounded, cotangents)
    through_logit = [(d["query"], d["reads"].lse[1]) for d in (gradients, same)]
    assert_close(*through_logit, 1e-4)
