"""Published modules in float64, as numbers in files, and again where torch and transformers are.

The maker of a model type is `tests/golden/systems/NAME.py`. Its `compute()` returns weights, inputs
and outputs by name, and

  python -m tests.golden.systems.NAME       (needs torch and transformers)

writes them to NAME.npz, next to it. A test takes `numbers` from `both("NAME")`.
"""

import contextlib
import functools
import importlib
import pathlib
from unittest import mock

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "golden" / "systems"


def write(name, arrays):
  np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


def both(name):
  """Parametrises `numbers`: a function that reads the file, and one that computes it anew."""
  return pytest.mark.parametrize(
    "numbers", [functools.partial(compute, name) for compute in (kept, live)], ids=["kept", "live"]
  )


def kept(name):
  """What the file has."""
  with np.load(FOLDER / f"{name}.npz") as file:
    return dict(file)


@functools.cache
def live(name):
  """What the modules compute now; skips without them."""
  pytest.importorskip("torch")
  pytest.importorskip("transformers", minversion="5.23")
  try:
    return importlib.import_module(f"tests.golden.systems.{name}").compute()
  except ModuleNotFoundError as error:
    pytest.skip(f"this transformers has no {name}: {error}")


@contextlib.contextmanager
def float64():
  """Modules are made in float64, and what they cast to float32 stays float64."""
  import torch

  before = torch.get_default_dtype()
  torch.set_default_dtype(torch.float64)
  try:
    with (
      mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
      mock.patch.object(torch.nn.functional, "softmax", lambda x, dim, **_: x.softmax(dim)),
      torch.no_grad(),
    ):
      yield
  finally:
    torch.set_default_dtype(before)


def fill(module, rng, **scales):
  """Draws every parameter of a module from a normal distribution of numpy.

  Args:
    module: a torch module.
    rng: a generator of numpy, so that values do not depend on the version of torch.
    **scales: parameter name without its path -> standard deviation; else 1 / sqrt(last axis).
  """
  import torch

  for path, p in module.named_parameters():
    scale = scales.get(path.rsplit(".", 1)[-1], p.shape[-1] ** -0.5)
    p.copy_(torch.from_numpy(scale * rng.normal(size=tuple(p.shape))))
