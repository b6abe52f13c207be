"""Phase 1 of two-phase depth attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.kernels.depth_attention import BlockRead, Sources, depth_attention_block
from resjax.testing.compare import assert_close
from tests.helpers import reference
from tests.helpers.two_phase import EPS, TOKENS, D, as_sources, example, rounded, wide

PRECISIONS = [(jnp.float32, 2e-6, 1e-5), (jnp.bfloat16, 4e-3, 4e-3)]


def block(queries, gains, sources, num_banked=0, **options):
  sources = as_sources(sources, num_banked)
  return depth_attention_block(sources, queries, key_scales=gains, eps=EPS, **options)


def numpy_phase1(queries, gains, sources):
  """Outputs and lse of every query."""
  logits = np.einsum("sd,n...d->sn...", queries * gains, reference.rms(sources, EPS))
  outs = [reference.depth_read(*row, sources, EPS) for row in zip(queries, gains, strict=True)]
  return np.stack(outs), np.log(np.sum(np.exp(logits), axis=1))


@pytest.mark.parametrize(("dtype", "forward", "gradient"), PRECISIONS)
@pytest.mark.parametrize(("count", "num_banked"), [(1, 0), (2, 1), (9, 9)])
def test_phase_1_in_narrow_dtypes(count, num_banked, dtype, forward, gradient):
  inputs = rounded(example(count, 8), dtype)[:3]
  rng = np.random.default_rng(3)
  d_out = jnp.asarray(rng.normal(size=(8, *TOKENS, D)), dtype)
  d_lse = jnp.asarray(rng.normal(size=(8, *TOKENS)), jnp.float32)

  @jax.jit
  def run(inputs, d_out, d_lse):
    got, vjp = jax.vjp(lambda *a: block(*a, num_banked), *inputs)
    return got, vjp(BlockRead(d_out, d_lse, jnp.zeros_like(got.inverse_rms)))

  got, gradients = run(inputs, d_out, d_lse)
  queries, gains, sources = wide(inputs)
  out, lse = numpy_phase1(queries, gains, sources)
  inverse_rms = 1 / np.sqrt(np.mean(sources**2, axis=-1) + EPS)
  assert_close(got, BlockRead(out, lse, inverse_rms), forward)
  with jax.enable_x64(True):  # which the chain with merges holds to direct reads
    _, wants = run(*jax.tree.map(jnp.asarray, wide((inputs, d_out, d_lse))))
  assert_close(gradients, wants, gradient)


@pytest.mark.parametrize("num_valid", [1, 3])
def test_slots_that_are_not_valid_are_not_read(num_valid):
  queries, gains, sources, d_out, _ = rounded(example(5, 2), jnp.float32)
  poisoned = sources.at[num_valid:].set(jnp.nan)

  @jax.jit
  def run(count, queries, gains, bank):  # a traced count, as in a scan
    def read(*a):
      return depth_attention_block(Sources((), a[2], count), a[0], key_scales=a[1])

    got, vjp = jax.vjp(read, queries, gains, bank)
    return got, vjp(BlockRead(d_out, got.lse, jnp.zeros_like(got.inverse_rms)))

  want, (*wants, want_bank) = run(num_valid, queries, gains, sources[:num_valid])
  got, (*gots, got_bank) = run(num_valid, queries, gains, poisoned)
  assert_close(got[:2], want[:2], 1e-6)
  assert_close(gots, wants, 1e-6)
  assert_close(got_bank[:num_valid], want_bank, 1e-6)
  np.testing.assert_array_equal(got_bank[num_valid:], 0)


def test_phase_1_keeps_sources_and_numbers_per_token():
  queries, gains, sources, _, _ = rounded(example(5, 3), jnp.float32)

  def read(*a):
    return depth_attention_block(Sources((), a[2], 5), a[0], key_scales=a[1])

  _, vjp = jax.vjp(read, queries, gains, sources)
  kept = sorted(leaf.shape for leaf in jax.tree.leaves(vjp) if leaf.shape[-len(TOKENS) :] == TOKENS)
  assert kept == sorted([(5, *TOKENS), (3, 5, *TOKENS), (3, *TOKENS)])
  assert [leaf.shape for leaf in jax.tree.leaves(vjp) if leaf.ndim > 3 and leaf.shape[-1] == D] == [
    sources.shape
  ]


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"sources": []}, ["sources", "at least one"]),
    ({"queries": np.ones(D)}, ["queries", "(16,)", "(S, 16)"]),
    ({"queries": np.ones((0, D))}, ["queries", "S >= 1"]),
    ({"key_scales": np.ones(D)}, ["key_scales", "(16,)", "(2, 16)"]),
    ({"implementation": "triton"}, ["'triton'", "reference"]),
  ],
)
def test_what_does_not_fit_phase_1_is_refused(changes, words):
  arguments = {"sources": [np.ones((3, D))], "queries": np.ones((2, D))} | changes
  with pytest.raises(ValueError) as refused:
    depth_attention_block(**arguments)
  assert all(word in str(refused.value) for word in words), refused.value
