"""The parts of a depth read that surround it: add, norm, sources threaded through several reads."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.kernels.depth_attention import Sources, depth_attention
from resjax.testing.compare import assert_close
from tests.helpers import reference

D, TOKENS, EPS = 16, (2, 3), 1e-6


def arrays(count, seed=0):
  """query, gain, sources, addend, gain of the output, cotangents; float64 numpy."""
  rng = np.random.default_rng(seed)
  shapes = (D,), (D,), (count, *TOKENS, D), (*TOKENS, D), (D,), (*TOKENS, D)
  return [rng.normal(size=shape) for shape in shapes]


def apart(query, gain, sources, addend, out_gain):
  """The same with an add, a read and a norm of their own: what autodiff makes of them."""
  sources = [*sources[:-1], sources[-1] + addend]
  h = depth_attention(sources, query, key_scale=gain, eps=EPS)
  return h * jax.lax.rsqrt(jnp.mean(h**2, axis=-1, keepdims=True) + EPS) * out_gain, sources


def fused(query, gain, sources, addend, out_gain, num_banked=0):
  banked = Sources(tuple(sources[num_banked:]), sources[:num_banked] if num_banked else None)
  banked = Sources(banked.recent, banked.bank, num_banked)
  out, returned = depth_attention(
    banked, query, key_scale=gain, addend=addend, out_norm_scale=out_gain, eps=EPS,
    return_sources=True,
  )  # fmt: skip
  return out, [*(returned.bank if num_banked else []), *returned.recent]


@functools.partial(jax.jit, static_argnums=0)
def outputs_and_gradients(read, inputs, cotangents):
  outputs, vjp = jax.vjp(read, *inputs)
  return outputs, vjp(cotangents)


@pytest.mark.parametrize(("count", "num_banked"), [(1, 0), (2, 0), (5, 0), (5, 2)])
def test_add_and_norm_in_one_read_are_those_apart(count, num_banked):
  *inputs, d_out = arrays(count)
  d_sources = list(np.random.default_rng(1).normal(size=(count, *TOKENS, D)))
  with jax.enable_x64(True):
    want, wants = outputs_and_gradients(apart, inputs, (d_out, d_sources))
    read = functools.partial(fused, num_banked=num_banked)
    got, gradients = outputs_and_gradients(read, inputs, (d_out, d_sources))
  assert_close(got, want, 1e-14)
  assert_close(gradients, wants, 1e-13)


def test_add_and_norm_are_those_of_numpy():
  query, gain, sources, addend, out_gain, _ = arrays(4)
  out, returned = jax.jit(fused)(*map(np.float32, (query, gain, sources, addend, out_gain)))
  values = [*sources[:-1], sources[-1] + addend]
  h = reference.depth_read(query, gain, values, EPS)
  assert_close(out, out_gain * reference.rms(h, EPS), 2e-6)
  assert_close(returned, values, 1e-7)


def test_a_read_of_bfloat16_sources_is_rounded_once_behind_its_norm():
  query, gain, sources, _, out_gain, _ = arrays(4)
  narrow = sources.astype(jnp.bfloat16)
  # Not in one program, in which XLA may leave out what rounds between two operations.
  out = depth_attention(
    list(narrow), np.float32(query), key_scale=np.float32(gain),
    out_norm_scale=np.float32(out_gain), eps=EPS,
  )  # fmt: skip
  h = reference.depth_read(np.float32(query), np.float32(gain), np.float64(narrow), EPS)
  half_ulp = float(jnp.finfo(jnp.bfloat16).eps) / 2
  want = out_gain * reference.rms(h, EPS)
  np.testing.assert_allclose(np.float64(out), want, rtol=1.01 * half_ulp, atol=1e-6)


def test_threaded_sources_collect_the_cotangents_of_all_reads():
  rng = np.random.default_rng(2)
  queries, sources = rng.normal(size=(3, D)), rng.normal(size=(4, *TOKENS, D))

  def loss(threads, queries, sources):
    sources, total = Sources(tuple(sources)), 0.0
    for query in queries:
      if threads:
        h, sources = depth_attention(sources, query, return_sources=True)
      else:
        h = depth_attention(sources, query)
      total += jnp.sum(jnp.sin(h))
    return total

  with jax.enable_x64(True):
    gradients = jax.jit(jax.grad(loss, (1, 2)), static_argnums=0)
    got, want = (gradients(threads, queries, sources) for threads in (True, False))
  assert_close(got, want, 1e-13)


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"sources": []}, ["sources", "at least one"]),
    ({"sources": [np.ones((2, D)), np.ones((3, D))]}, ["sources differ", "[2, 16]", "[3, 16]"]),
    ({"query": np.ones(D + 1)}, ["query", "(17,)", "(16,)"]),
    ({"key_scale": np.ones((1, D))}, ["key_scale", "(1, 16)"]),
    ({"out_norm_scale": np.ones(1)}, ["out_norm_scale", "(1,)"]),
    ({"num_heads": 3}, ["num_heads=3", "16"]),
    ({"num_heads": 0}, ["num_heads=0"]),
    ({"addend": np.ones((2, D))}, ["addend", "return_sources"]),
    ({"addend": np.ones(D), "return_sources": True}, ["addend", "(16,)", "(2, 16)"]),
    ({"implementation": "triton"}, ["'triton'", "reference", "None"]),
  ],
)
def test_what_does_not_fit_is_refused(changes, words):
  arguments = {"sources": [np.ones((2, D))] * 2, "query": np.ones(D)} | changes
  with pytest.raises(ValueError) as refused:
    depth_attention(arguments.pop("sources"), arguments.pop("query"), **arguments)
  assert all(word in str(refused.value) for word in words), refused.value
