"""Combinators that claim to be `standard` at init compute what `standard` computes."""

import functools

from resjax.testing import claims, toy
from resjax.testing.compare import assert_close, relative_errors
from tests.helpers import walks
from tests.helpers.systems import STANDARD_AT_INIT

X = toy.embeddings()
QUICK = ("attenuation", "block_attn_res", "deep_delta", "mhc_lite")


@functools.cache
def of_standard(num_layers):
  made = toy.build("standard", {}, num_layers=num_layers)
  return toy.jitted(claims.normed_output, made, toy.layers(num_layers), X)


@walks.first_cases(STANDARD_AT_INIT, quick=QUICK)
def test_fresh_combinator_is_standard(case):
  assert walks.subject(case).abstract().equals_standard_at_init
  claims.init(walks.subject(case))


@walks.first_cases(tuple(case for case in STANDARD_AT_INIT if case.learns_at_init), quick=QUICK)
def test_the_same_combinator_with_moved_parameters_is_not(case):
  num_layers = walks.num_layers(case)
  moved = toy.build(case.name, case.options, num_layers=num_layers)
  y, _ = toy.jitted(claims.normed_output, moved, toy.layers(num_layers), X)
  assert relative_errors(y, of_standard(num_layers)[0])[""] > 1e-2


# Of those with home streams some read the stream itself; `claims.init` is for all that need none.
NEED_NORMS = tuple(
  case
  for case in STANDARD_AT_INIT
  if case.options.get("init") != "home_stream" and walks.subject(case).abstract().needs_pre_norms
)


@walks.first_cases(NEED_NORMS)
def test_who_needs_norms_before_branches_is_not_standard_without(case):
  """A read must be the stream itself: a multiple of it is not enough."""
  got, want = claims.outputs_without_norms(walks.subject(case))
  assert relative_errors(got, want)[""] > 1e-3


def test_one_layer_blocks_of_one_site_are_full_attention_residuals():
  layers = toy.layers(sites=("mlp",))
  full = toy.build("attn_res", {}, sites=("mlp",))
  block = toy.build("block_attn_res", {"layers_per_block": 1}, sites=("mlp",))
  want = toy.jitted(toy.run, full, layers, X)
  assert_close(toy.jitted(toy.run, block, layers, X), want, 1e-6)
