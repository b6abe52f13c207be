"""Combinators that claim to be `standard` at init compute what `standard` computes."""

import functools

from tests.helpers import toy, walks
from tests.helpers.compare import assert_close, relative_errors
from tests.helpers.systems import STANDARD_AT_INIT

X = toy.embeddings()
# Reads may be the stream times a constant, which a norm removes only if its eps is negligible.
scale_free = functools.partial(toy.branch, eps=1e-20)


def normed_output(combinator, layers, x):
  y = toy.run(combinator, layers, x, scale_free, unroll=combinator.strategy == "loop")
  return toy.rms_norm(y, eps=1e-20)


@functools.cache
def of_standard(num_layers):
  made = toy.build("standard", {}, num_layers=num_layers)
  return toy.jitted(normed_output, made, toy.layers(num_layers), X)


@walks.first_cases(STANDARD_AT_INIT)
def test_fresh_combinator_is_standard(case):
  num_layers = walks.num_layers(case)
  fresh = toy.build(case.name, case.options, num_layers=num_layers, random=False)
  assert fresh.equals_standard_at_init
  got, (_, *gradients) = toy.jitted(normed_output, fresh, toy.layers(num_layers), X)
  want, (_, *wants) = of_standard(num_layers)
  assert_close(got, want, 1e-5)
  assert_close(gradients, wants, 1e-5)


@walks.first_cases(tuple(case for case in STANDARD_AT_INIT if case.learns_at_init))
def test_the_same_combinator_with_moved_parameters_is_not(case):
  num_layers = walks.num_layers(case)
  moved = toy.build(case.name, case.options, num_layers=num_layers)
  y, _ = toy.jitted(normed_output, moved, toy.layers(num_layers), X)
  assert relative_errors(y, of_standard(num_layers)[0])[""] > 1e-2


def bare(*arguments, **options):
  """A branch that reads what no norm has touched."""
  return toy.branch(*arguments, **options | {"pre_norm": False})


@walks.first_cases(STANDARD_AT_INIT)
def test_who_needs_norms_before_branches(case):
  """Without them a read must be the stream itself: a multiple of it is not enough."""
  num_layers = walks.num_layers(case)
  fresh, standard = (
    toy.build(name, options, num_layers=num_layers, random=False)
    for name, options in ((case.name, case.options), ("standard", {}))
  )
  layers = toy.layers(num_layers)
  got, want = (
    toy.rms_norm(toy.compiled_by_hand(made, layers, X, bare), eps=1e-20)
    for made in (fresh, standard)
  )
  if not fresh.needs_pre_norms:
    assert_close(got, want, 1e-5)
  elif case.options.get("init") != "home_stream":  # some of which read the stream itself
    assert relative_errors(got, want)[""] > 1e-3


def test_one_layer_blocks_of_one_site_are_full_attention_residuals():
  layers = toy.layers(sites=("mlp",))
  full = toy.build("attn_res", {}, sites=("mlp",))
  block = toy.build("block_attn_res", {"layers_per_block": 1}, sites=("mlp",))
  want = toy.jitted(toy.run, full, layers, X)
  assert_close(toy.jitted(toy.run, block, layers, X), want, 1e-6)
