"""Depth mixing keeps tokens apart: causal with causal branches, token-local with local ones."""

import jax
import numpy as np

from tests.helpers import toy, walks

MIX_TOKENS = ("deep_delta",)
LAYERS, X = toy.layers(), toy.embeddings()[:1]


def dependence(case, branch):
  """[T, T]: largest |d output of token t / d input of token s|."""
  made = toy.build(case.name, case.options)
  jacobian = jax.jacrev(lambda x: toy.by_hand(made, LAYERS, x, branch)[0])(X)
  return np.abs(jacobian).max(axis=(1, 2, 4))


@walks.one_case_each(all_of=MIX_TOKENS)
def test_causal(case):
  d = dependence(case, toy.branch)
  assert (d[np.triu_indices(toy.T, 1)] == 0).all()
  assert (d[np.tril_indices(toy.T)] > 0).all()


@walks.one_case_each(all_of=MIX_TOKENS)
def test_combinators_without_a_cache_are_token_local(case):
  d = dependence(case, toy.token_local_branch)
  mixes_tokens = toy.build(case.name, case.options).decode_cache(1, "float32") is not None
  assert (d.diagonal() > 0).all()
  assert (d[~np.eye(toy.T, dtype=bool)] > 0).any() == mixes_tokens
