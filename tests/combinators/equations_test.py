"""Every combinator against its equations in float64 numpy (tests/helpers/systems)."""

import functools

import jax
import numpy as np

from resjax import combinators
from resjax.testing import toy
from resjax.testing.compare import assert_close
from tests.helpers import walks
from tests.helpers.systems import CASES, EQUATIONS

THREE = ("short_swa", "attention", "mlp")


def equations(case, params, layers, x, sites=toy.SITES):
  return EQUATIONS[case.name](params, layers, x, sites, **case.options)


def test_every_registered_name_has_equations():
  assert set(EQUATIONS) == set(combinators.names())


# `make test` has float64 for the first case of a name, and float32 for its other forms.
@walks.one_case_each(quick=(), slow=())
def test_float32_values(case):
  check_values(case, toy.SITES, np.float32, 1e-6)


@walks.first_cases()
def test_float64_values_at_three_sites(case):
  with jax.enable_x64(True):
    check_values(case, THREE, np.float64, 1e-12, walks.num_layers(case))


@walks.one_case_each(quick=(), slow=())
def test_float64_values_at_one_site(case):
  with jax.enable_x64(True):
    check_values(case, ("mlp",), np.float64, 1e-12, walks.num_layers(case))


# Twenty Sinkhorn iterations take a minute to compile; mhc_lite has all else that mhc has.
@walks.other_forms(tuple(c for c in CASES if c.name != "mhc" or "constraint" in c.options))
def test_float32_values_of_other_forms_in_a_shallow_network(case):
  check_values(case, toy.SITES, np.float32, 1e-6, num_layers=3)


def check_values(case, sites, dtype, tolerance, num_layers=toy.L):
  made = toy.build(case.name, case.options, sites=sites, num_layers=num_layers)
  layers = toy.layers(num_layers, sites=sites, dtype=dtype)
  layers, x = jax.device_put((layers, toy.embeddings(dtype=dtype)))
  # Twenty Sinkhorn iterations for each sublayer take a minute to compile as one program.
  forward = toy.by_hand if case.name == "mhc" else toy.compiled_by_hand
  got = forward(made, layers, x)
  assert got.dtype == dtype
  params, layers, x = jax.tree.map(np.float64, (toy.parameters(made), layers, x))
  assert_close(got, equations(case, params, layers, x, sites), tolerance)


@walks.first_cases(quick=("standard", "deep_delta", "independent_hc", "gate"))
def test_float64_values_and_gradients(case):
  with jax.enable_x64(True):
    num_layers = walks.num_layers(case)
    made = toy.build(case.name, case.options, num_layers=num_layers)
    layers = toy.layers(num_layers, dtype=float)
    layers, x = jax.device_put((layers, toy.embeddings(dtype=float)))
    params = toy.parameters(made)
    y, gradients = walks.value_and_gradients(case)(toy.by_hand, made, layers, x)
    assert y.dtype == np.float64
  forward = functools.partial(equations, case)
  arguments, gradients = jax.tree.map(np.asarray, ((params, layers, x), gradients))
  assert_close(y, forward(*arguments), 1e-12)
  check_gradients(lambda *a: np.sum(toy.cotangent(y.shape) * forward(*a)), arguments, gradients)


def check_gradients(f, arguments, gradients, h=1e-4):
  """Central differences at two coordinates of every leaf; error h⁴ and 1e-16 / h, relative."""
  rng = np.random.default_rng(4)
  leaves, treedef = jax.tree.flatten(arguments)
  for index, gradient in enumerate(jax.tree.leaves(gradients)):
    for _ in range(2):
      at = tuple(rng.integers(0, n) for n in gradient.shape)

      def shifted(step, index=index, at=at):
        moved = [leaf.copy() for leaf in leaves]
        moved[index][at] += step
        return f(*jax.tree.unflatten(treedef, moved))

      near, far = shifted(h) - shifted(-h), shifted(2 * h) - shifted(-2 * h)
      difference = (8 * near - far) / (12 * h)
      assert abs(difference - gradient[at]) < 1e-8 * max(1.0, abs(difference)), (index, at)
