"""What every registered combinator owes, on every option set of tests/helpers/systems."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.testing import CHECKS, claims, layers, tokens, toy
from resjax.testing.compare import relative_errors
from tests.helpers import walks
from tests.helpers.systems import CASES, STANDARD_AT_INIT

pytestmark = pytest.mark.usefixtures("without_promotion")
walk = walks.cases()
SCANNED = tuple(case for case in CASES if not case.loop_only)
# What a state can hold; how a layer is recomputed depends on no other option.
LOOPED = ("standard", "block_attn_res", "delta_attn_res", "unet_skips", "x0_residual")
FORMS = (*LOOPED, "hyper_connections")  # of which a loop takes long to compile
MIX_TOKENS = ("deep_delta",)
# Reads of the first block differ from those of others where a block is opened, too.
UNIFORM = {"layers_per_block": 2, "first_block": "uniform", "two_phase": "always", "views": "qkv"}


def test_every_registered_name_has_cases():
  names = set(combinators.names())
  assert {case.name for case in CASES} == names
  made = nnx.eval_shape(lambda: {n: toy.build(n, {}, random=False) for n in names})
  plain = {n for n in names if made[n].equals_standard_at_init}
  assert {case.name for case in STANDARD_AT_INIT} >= plain


@walks.one_case_each(quick=LOOPED, slow=())
def test_python_loop_of_depth_run_is_the_loop_by_hand(case):
  layers.loop(walks.subject(case))


@walks.one_case_each(quick=LOOPED, slow=())
def test_python_loop_with_remat_is_the_loop_by_hand(case):
  layers.loop_with_remat(walks.subject(case))


@walks.first_cases(SCANNED, quick=FORMS, also=(UNIFORM,))
def test_scan_with_remat_is_the_loop_by_hand(case):
  layers.scan_with_remat(walks.subject(case))


@walks.one_case_each(SCANNED, quick=FORMS, slow=())
def test_scan_is_the_loop_by_hand(case):
  layers.scan(walks.subject(case))


@walks.one_case_each(SCANNED, quick=FORMS, slow=())
def test_scan_that_keeps_products_is_the_loop_by_hand(case):
  layers.scan_that_keeps_products(walks.subject(case))


def test_a_loop_alone_is_for_those_that_no_scan_can_run():
  for case in CASES:
    assert case.loop_only == (walks.subject(case).abstract().strategy == "loop"), str(case)


@walks.first_cases(quick=FORMS)
def test_random_parameters_all_have_gradients(case):
  layers.gradients(walks.subject(case))


@walks.first_cases(tuple(case for case in CASES if case.learns_at_init), quick=FORMS)
def test_queries_and_gates_learn_from_the_first_step(case):
  subject = walks.subject(case)
  _, (params, _, _) = subject.by_hand(*subject.network(subject.fresh()))
  layers.check_dead(params, case.dead, case.learns_at_init)


@walks.first_cases(quick=FORMS)
def test_bfloat16_activations_and_float32_parameters(case):
  layers.bfloat16(walks.subject(case))


@walks.first_cases()
def test_parameters_and_state_bytes_and_flops_are_counted(case):
  claims.counts(walks.subject(case))


@walk
def test_number_of_parameters(case):
  made = walks.subject(case).abstract()
  leaves = jax.tree.leaves(nnx.state(made))
  assert made.num_parameters() == sum(leaf.size for leaf in leaves)


@walk
def test_decayed_and_per_layer_parameters_exist(case):
  claims.declarations(walks.subject(case))


@walks.one_case_each(quick=FORMS)
def test_shapes_and_sizes_are_those_of_the_protocol(case):
  claims.protocol(walks.subject(case))


@walks.one_case_each(all_of=MIX_TOKENS, quick=FORMS)
def test_causal_and_without_a_cache_token_local(case):
  tokens.causal(walks.subject(case, num_layers=2))


@walks.one_case_each(all_of=MIX_TOKENS, quick=MIX_TOKENS)
def test_tokens_in_chunks_are_all_tokens(case):
  tokens.decoding(walks.subject(case))


@walks.one_case_each(quick=("block_attn_res",), slow=("hyper_connections", "muddformer"))
def test_two_devices_compute_what_one_does(case):
  layers.mesh(walks.subject(case))


@walks.one_case_each(quick=("block_attn_res", "x0_residual"))
def test_the_output_after_the_last_site_is_the_output(case):
  claims.early_output(walks.subject(case))


def test_relative_error_sees_one_wrong_leaf():
  want = {"a": np.ones(4), "b": np.full(4, 1e-3)}
  errors = relative_errors({"a": np.ones(4), "b": np.full(4, 1.1e-3)}, want)
  assert errors["['a']"] == 0 and errors["['b']"] > 0.01


def test_no_check_is_left_out_here():
  tests = "".join(path.read_text() for path in Path(__file__).parent.glob("*_test.py"))
  rooms = {name: check.__module__.rpartition(".")[2] for name, check in CHECKS.items()}
  assert {name for name, room in rooms.items() if f"{room}.{name}(" in tests} == set(CHECKS)
