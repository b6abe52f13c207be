"""Shapes that public functions say in annotations: every array has one, and they hold.

Some tests run again in a process of their own, where each call checks its arrays.
"""

import inspect
import os
import re
import subprocess
import sys
import types
import typing
from collections.abc import Callable

import jax
import pytest

from resjax import combinators, models
from resjax.kernels import depth_attention, gated_streams, self_attention, streams
from tests.helpers.runs import REPOSITORY
from tests.helpers.shapes import CHECKED

TESTS = [
  "tests/helpers/right_shapes.py",
  "tests/helpers/wrong_shapes.py",
  "tests/kernels/sums_test.py",
  "tests/kernels/depth_sum_test.py",
  "tests/nn/attention_test.py",
]
DOORS = depth_attention, gated_streams, self_attention, streams, models
METHODS = [
  *map(combinators.get, combinators.names(shipped=True)),
  *(models.Decoder, models.DecodeCache, models.ResidualStream, models.SiteVisit),
]


def bare_arrays(annotation):
  """The places of an annotation with an array of which no axes are said."""
  if annotation is jax.Array:
    return 1
  functions = typing.get_origin(annotation) is Callable  # their own arrays are theirs to say
  return 0 if functions else sum(map(bare_arrays, typing.get_args(annotation)))


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_functions_of_a_door_say_the_axes_of_their_arrays(door):
  for name in dir(door):
    function = getattr(door, name)
    function = getattr(function, "__wrapped__", function)
    if isinstance(function, types.FunctionType):
      found = {key: bare_arrays(one) for key, one in typing.get_type_hints(function).items()}
      assert not any(found.values()), f"{name}: {found}"


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_methods_of_a_system_and_of_models_say_the_axes_of_their_arrays(kind):
  for name, method in inspect.getmembers(kind, inspect.isfunction):
    if not name.startswith("_") and method.__module__.startswith("resjax."):
      found = {key: bare_arrays(one) for key, one in typing.get_type_hints(method).items()}
      assert not any(found.values()), f"{name}: {found}"


@pytest.mark.slow
def test_calls_have_the_axes_that_annotations_say():
  checked = f"--jaxtyping-packages={','.join(CHECKED)},tests.helpers.shapes.typed"
  options = ["-q", "-n0", "-p", "no:cacheprovider", "-p", "tests.helpers.shapes", checked]
  options += ["-m", "not slow and not release"]
  command = [sys.executable, "-m", "pytest", *options, *TESTS]
  done = subprocess.run(command, cwd=REPOSITORY, env=os.environ, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
  assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 20
