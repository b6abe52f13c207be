"""Reads with a fused norm in a scan are norms of reads in a loop, with the same gradients."""

import functools

import jax
import numpy as np
import pytest

from resjax.combinators import Combinator, PreNorm, registry
from resjax.combinators.depth_reader import DepthReader
from tests.helpers import toy, walks
from tests.helpers.systems import CASES

EPS = 0.03  # not the eps of any combinator
PLAIN = ("standard", "muddformer", "hyper_connections")  # the others show no more of the default
FUSES = [c for c in CASES if registry.get(c.name).read_normed is not Combinator.read_normed]


def normalise(layer, site, views, context=None):
  views = {name: PreNorm(layer[site]["gain"], EPS)(x) for name, x in views.items()}
  return toy.branch(layer, site, views, pre_norm=False)


def all_pre_norms(combinator, layer, site):
  return dict.fromkeys(combinator.view_names(site), PreNorm(layer[site]["gain"], EPS))


def test_it_is_attention_residuals_that_fuse():
  assert {case.name for case in FUSES} >= {"attn_res", "block_attn_res"}


@walks.first_cases(FUSES, also=({"layers_per_block": 2, "two_phase": "always"},))
def test_fused_norm(case, monkeypatch):
  check(case, monkeypatch, fuses=True)


@pytest.mark.parametrize(
  "case",
  [
    pytest.param(case, id=str(case), marks=[] if case.name in PLAIN else pytest.mark.slow)
    for case in CASES
    if case not in FUSES and walks.is_first(case)
  ],
)
def test_any_combinator_normalises_its_views(case, monkeypatch):
  check(case, monkeypatch, fuses=False)


def check(case, monkeypatch, *, fuses):
  num_layers = walks.num_layers(case)
  layers = toy.layers(num_layers, dtype=float)
  unfused = []
  called = PreNorm.__call__
  monkeypatch.setattr(PreNorm, "__call__", lambda *args: (unfused.append(args), called(*args))[1])

  def separate(combinator, layers, x):
    return toy.depth.run(combinator, layers, x, normalise, unroll=True)

  def fused(combinator, layers, x):
    branch = functools.partial(toy.branch, pre_norm=False)
    norms = functools.partial(all_pre_norms, combinator)
    return toy.depth.run(combinator, layers, x, branch, pre_norms=norms)

  with jax.enable_x64(True):
    made = toy.build(case.name, case.options, num_layers=num_layers)
    arrays = layers, toy.embeddings(float)
    want = toy.jitted(separate, made, *arrays)
    unfused.clear()
    got = toy.jitted(fused, made, *arrays)
  # A read with options that no kernel of depth attention covers.
  in_plain_jax = fuses and isinstance(made, DepthReader) and made.scores.plain != ""
  assert bool(unfused) == (in_plain_jax or not fuses)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * max(1, abs(b).max()))
