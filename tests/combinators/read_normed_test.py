"""Reads with a fused norm in a scan are norms of reads in a loop, with the same gradients."""

import jax
import pytest

from resjax.combinators import Combinator, PreNorm, registry
from resjax.combinators.depth_reader import DepthReader
from resjax.testing import layers
from tests.helpers import walks
from tests.helpers.systems import CASES

pytestmark = pytest.mark.usefixtures("without_promotion")
PLAIN = ("standard", "muddformer", "hyper_connections")  # the others show no more of the default
FUSES = [c for c in CASES if registry.get(c.name).read_normed is not Combinator.read_normed]

QUICK = ("attn_res", "block_attn_res", "delta_attn_res")


def test_it_is_attention_residuals_that_fuse():
  assert {case.name for case in FUSES} >= {"attn_res", "block_attn_res"}


@walks.first_cases(FUSES, quick=QUICK, also=({"layers_per_block": 2, "two_phase": "always"},))
def test_fused_norm(case, monkeypatch):
  check(case, monkeypatch, fuses=True)


@pytest.mark.parametrize(
  "case",
  [
    pytest.param(case, id=str(case), marks=[] if case.name in PLAIN else pytest.mark.release)
    for case in CASES
    if case not in FUSES and walks.is_first(case)
  ],
)
def test_any_combinator_normalises_its_views(case, monkeypatch):
  check(case, monkeypatch, fuses=False)


def check(case, monkeypatch, *, fuses):
  unfused, called = [], PreNorm.__call__
  monkeypatch.setattr(PreNorm, "__call__", lambda *args: (unfused.append(args), called(*args))[1])
  made, *arrays = walks.subject(case).network()
  with jax.enable_x64(True):
    jax.eval_shape(lambda: layers.with_fused_norms(made, *arrays))
  # A read with options that no kernel of depth attention covers.
  in_plain_jax = fuses and isinstance(made, DepthReader) and made.scores.plain != ""
  assert bool(unfused) == (in_plain_jax or not fuses)
  layers.fused_norms(walks.subject(case))
