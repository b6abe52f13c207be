"""What every registered combinator owes, on every option set of tests/helpers/systems."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax import combinators
from tests.helpers import toy, walks
from tests.helpers.compare import assert_close, norm, relative_errors
from tests.helpers.systems import CASES, STANDARD_AT_INIT

walk = walks.cases()
SCANNED = tuple(case for case in CASES if not case.loop_only)
# What a state can hold; how a layer is recomputed depends on no other option.
FORMS = ("standard", "block_attn_res", "delta_attn_res", "mhc_lite", "unet_skips", "x0_residual")


def build(case, **changes):
  return toy.build(case.name, case.options, num_layers=walks.num_layers(case), **changes)


def inputs(case, dtype=np.float32):
  """The parameters of the branches, and the embeddings."""
  return toy.layers(walks.num_layers(case), dtype=dtype), jax.device_put(toy.embeddings(dtype))


def network(case, **changes):
  """A combinator with random parameters, the branches and embeddings, in float64.

  The gradient of a scalar is a sum that may cancel: what float32 leaves of it proves little.
  """
  graphdef, state = nnx.split(build(case, **changes))  # drawn outside: x64 draws others
  with jax.enable_x64(True):
    state = jax.device_put(jax.tree.map(np.float64, state))
    return nnx.merge(graphdef, state), *inputs(case, np.float64)


@functools.cache
def expected(case):
  """Value and gradients of the loop over layers written out by hand."""
  return by_hand(case, network(case))


def by_hand(case, made):
  with jax.enable_x64(True):
    return jax.tree.map(np.asarray, walks.value_and_gradients(case)(toy.by_hand, *made))


def test_every_registered_name_has_cases():
  names = set(combinators.names())
  assert {case.name for case in CASES} == names
  made = nnx.eval_shape(lambda: {n: combinators.build(n, **sizes()) for n in names})
  plain = {n for n in names if made[n].equals_standard_at_init}
  assert {case.name for case in STANDARD_AT_INIT} >= plain


def sizes():
  return {"num_layers": toy.L, "d_model": toy.D, "rngs": nnx.Rngs(0)}


@walks.one_case_each()
def test_python_loop_of_depth_run_is_the_loop_by_hand(case):
  check_loop(case, "none")


@walks.first_cases(quick=FORMS)
def test_python_loop_with_remat_is_the_loop_by_hand(case):
  check_loop(case, "full")


def check_loop(case, remat):
  forward = functools.partial(toy.run, unroll=True, remat=remat)
  check(case, walks.value_and_gradients(case), forward)


@walks.first_cases(SCANNED, quick=FORMS)
def test_scan_with_remat_is_the_loop_by_hand(case):
  check_scan(case, "full")


@walks.one_case_each(SCANNED)
def test_scan_is_the_loop_by_hand(case):
  check_scan(case, "none")


@walks.one_case_each(SCANNED, quick=FORMS)
def test_scan_that_keeps_products_is_the_loop_by_hand(case):
  check_scan(case, "dots")


def check_scan(case, remat):
  check(case, toy.jitted, functools.partial(toy.run, remat=remat))


def check(case, value_and_gradients, forward):
  want, made = expected(case), network(case)
  with jax.enable_x64(True):
    got = value_and_gradients(forward, *made)
  assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {jnp.dtype("float64")}
  assert_close(got, want, 1e-12)


@walks.first_cases()
def test_random_parameters_all_have_gradients(case):
  _, (params, *others) = expected(case)
  check_dead(params, case.dead, params)
  for leaf in jax.tree.leaves(others):
    assert np.isfinite(leaf).all() and norm(leaf) > 0


def check_dead(gradients, dead, names):
  """Exactly the elements under the index prefixes of `dead` are zero."""
  assert set(dead) <= set(gradients)
  for name in names:
    for gradient in jax.tree.leaves(gradients[name]):  # one, or one per layer
      zero = np.zeros(gradient.shape, bool)
      for prefix in dead.get(name, ()):
        zero[prefix] = True
      assert np.isfinite(gradient).all(), name
      np.testing.assert_array_equal(gradient == 0, zero, err_msg=name)


@walks.first_cases(tuple(case for case in CASES if case.learns_at_init))
def test_queries_and_gates_learn_from_the_first_step(case):
  _, (params, _, _) = by_hand(case, network(case, random=False))
  check_dead(params, case.dead, case.learns_at_init)


@walks.first_cases()
def test_bfloat16_activations_and_float32_parameters(case):
  want, want_gradients = expected(case)
  made, (layers, x) = build(case), inputs(case)
  compute = scan_with_every_rounding if walks.is_first(case) else loop_by_operations
  got, gradients = compute(made, layers, x.astype(jnp.bfloat16))
  assert got.dtype == jnp.bfloat16 and gradients[2].dtype == jnp.bfloat16
  assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(made))} <= {jnp.dtype("float32")}
  assert {leaf.dtype for leaf in jax.tree.leaves(gradients[:2])} == {jnp.dtype("float32")}
  # Every sublayer rounds its input, hidden layer, output and the stream once or twice.
  rounding = float(jnp.finfo(jnp.bfloat16).eps) * np.sqrt(4 * made.num_sublayers)
  assert_close(got, want, rounding)
  assert_close(gradients, want_gradients, 3 * rounding, floor=0.3)


def scan_with_every_rounding(made, *arrays):
  """Value and gradients in one program, with also the roundings within one kernel."""
  graphdef, state = nnx.split(made)

  def compute(state, *arrays):
    return toy.value_and_gradients(toy.run, nnx.merge(graphdef, state), *arrays)

  options = {"xla_allow_excess_precision": False}
  return jax.jit(compute, compiler_options=options)(state, *arrays)


def loop_by_operations(made, *arrays):
  return toy.value_and_gradients(functools.partial(toy.run, unroll=True), made, *arrays)


@walk
def test_number_of_parameters(case):
  made = nnx.eval_shape(lambda: combinators.build(case.name, **sizes(), **case.options))
  leaves = jax.tree.leaves(nnx.state(made))
  assert made.num_parameters() == sum(leaf.size for leaf in leaves)


@walks.first_cases()
def test_state_bytes_are_those_of_the_last_state(case):
  made, (layers, x) = build(case), inputs(case)
  last = jax.eval_shape(lambda: arrays([*toy.states_by_hand(made, layers, x)][-1]))
  held = sum(leaf.size * leaf.dtype.itemsize for leaf in last)
  assert made.state_bytes_per_token(x.dtype) * toy.B * toy.T == held


def arrays(state):
  return [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]


@walk
def test_decayed_and_per_layer_parameters_exist(case):
  made = nnx.eval_shape(lambda: build(case, random=False))
  params = nnx.to_pure_dict(nnx.state(made))
  assert set(made.decayed_parameters) | set(made.per_layer) <= set(params)
  assert {len(params[name]) for name in made.per_layer} <= {walks.num_layers(case)}


def test_relative_error_sees_one_wrong_leaf():
  want = {"a": np.ones(4), "b": np.full(4, 1e-3)}
  errors = relative_errors({"a": np.ones(4), "b": np.full(4, 1.1e-3)}, want)
  assert errors["['a']"] == 0 and errors["['b']"] > 0.01
