"""Sums of depth sources with static and gated weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.kernels.depth_attention import Sources, depth_sum, gated_depth_sum
from resjax.testing.compare import assert_close

N, TOKENS, D = 5, (2, 3), 8
RNG = np.random.default_rng(0)
SOURCES = RNG.normal(size=(N, *TOKENS, D))
QUERY, COTANGENT = RNG.normal(size=D), RNG.normal(size=(*TOKENS, D))
WEIGHTS = {
  "source": RNG.normal(size=N),
  "channel": RNG.normal(size=(N, D)),
  "token": RNG.normal(size=(N, *TOKENS, 1)),
}


def by_hand(sources, weights, query=None):
  """Float64 numpy, source by source."""
  total = np.zeros(sources.shape[1:])
  for v, w in zip(sources, weights, strict=True):
    gate = 0.0 if query is None else np.maximum(np.sum(v * query, axis=-1), 0.0)[..., None]
    total = total + (w + gate) * v
  return total


def summed(sources, weights, *query):
  return (gated_depth_sum if query else depth_sum)(sources, weights, *query)


CASES = [(name, ()) for name in WEIGHTS] + [(name, (QUERY,)) for name in ("source", "channel")]
IDS = ["source", "channel", "token", "gated-source", "gated-channel"]
cases = pytest.mark.parametrize("name, query", CASES, ids=IDS)


def listed(sources, weights, *query):
  return summed(Sources(recent=tuple(sources)), weights, *query)


def banked(num_valid, bank, weights, *query):
  return summed(Sources(bank=bank, num_valid=num_valid), weights, *query)


@jax.jit
def listed_and_gradients(dh, *arguments):
  h, vjp = jax.vjp(listed, *arguments)
  return h, vjp(dh)


@cases
def test_values_and_gradients_in_float64(name, query):
  arguments = (SOURCES, WEIGHTS[name], *query)
  with jax.enable_x64(True):
    h, gradients = listed_and_gradients(COTANGENT, *arguments)
  assert h.dtype == np.float64
  assert_close(h, by_hand(*arguments), 1e-14)
  for place, gradient in enumerate(gradients):
    direction = np.random.default_rng(place).normal(size=gradient.shape)
    step = [1e-6 * direction if i == place else 0.0 for i in range(len(arguments))]
    ends = [by_hand(*(a + s * b for a, b in zip(arguments, step, strict=True))) for s in (1, -1)]
    want = np.sum(COTANGENT * (ends[0] - ends[1])) / 2e-6
    np.testing.assert_allclose(np.sum(np.asarray(gradient) * direction), want, rtol=1e-7)


@jax.jit
def banked_and_gradients(num_valid, dh, *arguments):
  h, vjp = jax.vjp(functools.partial(banked, num_valid), *arguments)
  return h, vjp(dh)


@cases
@pytest.mark.parametrize("num_valid", [1, 3, 5])
def test_a_bank_is_the_list_of_its_valid_slots(name, query, num_valid):
  arguments = (SOURCES, WEIGHTS[name], COTANGENT, *query)
  bank, weights, dh, *rest = (a.astype(np.float32) for a in arguments)
  want, wants = listed_and_gradients(dh, bank[:num_valid], weights[:num_valid], *rest)
  bank = np.where(np.arange(N).reshape(-1, 1, 1, 1) < num_valid, bank, np.float32(-1e18))

  got, gradients = banked_and_gradients(num_valid, dh, bank, weights, *rest)
  d_bank, d_weights, *d_rest = map(np.asarray, gradients)
  assert_close(got, want, 1e-6)
  assert_close((d_bank[:num_valid], d_weights[:num_valid], *d_rest), wants, 1e-5)
  assert not np.any(d_bank[num_valid:]) and not np.any(d_weights[num_valid:])


@cases
def test_bfloat16_sources_are_added_in_float32(name, query):
  sources = SOURCES.astype(jnp.bfloat16)
  weights, *rest = (a.astype(np.float32) for a in (WEIGHTS[name], *query))
  got = jax.jit(listed)(sources, weights, *rest)
  assert got.dtype == jnp.bfloat16
  exact = by_hand(*(np.asarray(a, np.float64) for a in (sources, weights, *rest)))
  assert_close(got, exact, float(jnp.finfo(jnp.bfloat16).eps) / 2)  # rounded once
