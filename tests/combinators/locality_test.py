"""Depth mixing keeps tokens apart: causal with causal branches, token-local with local ones."""

import functools

import jax
import numpy as np

from tests.helpers import toy, walks

MIX_TOKENS = ("deep_delta",)
NUM_LAYERS = 2
LAYERS, X = toy.layers(NUM_LAYERS), toy.embeddings()[:1]


def made(case):
  return toy.build(case.name, case.options, num_layers=NUM_LAYERS)


@functools.cache
def jacobian(case):
  """A compiled function of x and of whether the branches mix tokens."""
  combinator = made(case)

  def output(x, mixes):
    branch = functools.partial(toy.branch, mix_tokens=mixes)
    return toy.by_hand(combinator, LAYERS, x, branch)[0]

  return jax.jit(jax.jacrev(output))


def dependence(case, *, mixes):
  """[T, T]: largest |d output of token t / d input of token s|."""
  return np.abs(jacobian(case)(X, mixes)).max(axis=(1, 2, 4))


@walks.one_case_each(all_of=MIX_TOKENS)
def test_causal(case):
  d = dependence(case, mixes=True)
  assert (d[np.triu_indices(toy.T, 1)] == 0).all()
  assert (d[np.tril_indices(toy.T)] > 0).all()


@walks.one_case_each(all_of=MIX_TOKENS)
def test_combinators_without_a_cache_are_token_local(case):
  d = dependence(case, mixes=False)
  mixes_tokens = made(case).decode_cache(1, "float32") is not None
  assert (d.diagonal() > 0).all()
  assert (d[~np.eye(toy.T, dtype=bool)] > 0).any() == mixes_tokens
