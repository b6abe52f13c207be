"""Every combinator against its plain form in JAX, which the site shows (docs/systems/plain)."""

import functools
import importlib.util
import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.testing import toy
from resjax.testing.compare import assert_close
from tests.helpers import walks
from tests.helpers.systems import CASES

PLAIN = Path(__file__).parents[2] / "docs" / "systems" / "plain"
MOST_LINES = 45
# The others take a while to compile.
SOON = {*combinators.names()} - {"mhc", "mhc_lite", "wide_residual"}


@functools.cache
def plain(name):
  """The plain form of a system, from a file that stands alone."""
  path = PLAIN / f"{name}.py"
  assert path.exists(), f"{name} has no plain form; write docs/systems/plain/{name}.py"
  spec = importlib.util.spec_from_file_location(f"plain_{name}", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return getattr(module, name)


def taken(name):
  """The options that the plain form takes, with its defaults."""
  _, _, _, *options = inspect.signature(plain(name)).parameters.values()
  return {option.name: option.default for option in options}


def left_out(name):
  """The options whose other values the plain form does not have, which its docstring names."""
  listed = re.search(r"Left out: ([\w,\s]+)\.", plain(name).__doc__)
  return set(re.findall(r"\w+", listed[1])) if listed else set()


PLAIN_CASES = tuple(
  case
  for case in CASES
  if (PLAIN / f"{case.name}.py").exists() and not set(case.options) & left_out(case.name)
)


@pytest.mark.parametrize("name", combinators.names(shipped=True))
def test_a_plain_form_stands_alone_and_knows_its_options(name):
  plain(name)
  text = (PLAIN / f"{name}.py").read_text()
  assert "resjax" not in text and len(text.splitlines()) <= MOST_LINES
  options = combinators.options(name)
  assert {key: options[key] for key in taken(name)} == taken(name)
  assert left_out(name) <= set(options) - set(taken(name))
  assert name in {case.name for case in PLAIN_CASES}


def test_every_plain_form_is_of_a_system():
  assert {path.stem for path in PLAIN.glob("*.py")} == set(combinators.names(shipped=True))


def branches(layers):
  """The branches of resjax/testing/toy.py as plain forms take them: (norm, f) by layer and site."""

  def f(row, site, *views):
    named = {"x": views[0], **(dict(zip("qkv", views, strict=True)) if len(views) > 1 else {})}
    return toy.branch(row, site, named, pre_norm=False)[1]

  num_layers = len(layers["mlp"]["gain"])
  rows = [jax.tree.map(lambda leaf, i=i: leaf[i], layers) for i in range(num_layers)]
  return [[(toy.rms_norm, functools.partial(f, row, site)) for site in toy.SITES] for row in rows]


def value_and_gradients(case, params, layers, x):
  """What `toy.value_and_gradients` returns of a class."""
  options = {key: value for key, value in case.options.items() if key in taken(case.name)}

  def forward(params, layers, x):
    return plain(case.name)(params, x, branches(layers), **options)

  y, vjp = jax.vjp(forward, params, layers, x)
  return y, vjp(jnp.asarray(toy.cotangent(y.shape), y.dtype))


def check(case, dtype, tolerance):
  """Compares with the loop by hand in float64, whose program other tests compile too."""
  subject = walks.subject(case)
  made, layers, x = subject.network()
  params = nnx.to_pure_dict(nnx.state(made))
  run = functools.partial(value_and_gradients, case)
  with jax.enable_x64(dtype == np.float64):
    arguments = jax.device_put(jax.tree.map(dtype, (params, layers, x)))
    got = (jax.jit(run) if walks.is_first(case) else run)(*arguments)
  assert got[0].dtype == dtype
  assert_close(jax.tree.map(np.asarray, got), subject.expected, tolerance)


@walks.first_cases(PLAIN_CASES, quick=SOON)
def test_float64_values_and_gradients(case):
  check(case, np.float64, 1e-11)


@walks.one_case_each(
  PLAIN_CASES, quick=("standard", "attn_res"), slow=("deep_delta", "mhc", "muddformer")
)
def test_float32_values_and_gradients(case):
  check(case, np.float32, 1e-5)
