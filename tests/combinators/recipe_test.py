"""docs/new_combinator.md, followed to the letter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from resjax import combinators
from resjax.combinators import registry
from resjax.testing import CHECKS, combinator
from tests.helpers import checkouts, xla

ROOT = Path(__file__).parents[2]
OWN, RECIPE = (ROOT / "docs" / "new_combinator.md").read_text().split("## In resjax")
BLOCK = re.compile(r"^(?:`([\w/.]+)`[^\n]*\n\n)?```python\n(.*?)^```", re.M | re.S)
NAME = "leaky"


QUICK = ("protocol", "declarations", "counts")  # of the checks of an author


@pytest.mark.parametrize(
  "checks", [QUICK, pytest.param(CHECKS, marks=pytest.mark.release)], ids=len
)
def test_a_class_of_ones_own(checks, monkeypatch):
  monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
  monkeypatch.setattr(combinator, "CHECKS", {name: CHECKS[name] for name in checks})
  names = {}
  for _, block in BLOCK.findall(OWN):
    exec(block, names)
  assert combinators.options("halved") == {"factor": 0.5}
  x = jnp.ones((2, 16, 64))
  assert (names["made"].write(names["state"], 0, "mlp", x) == 0.5).all()
  assert names["made"].flops_per_token() == 12 * 2 * 2 * 64


def follow(root):
  """Writes every file of the recipe into a copy, and returns how many there are."""
  files = BLOCK.findall(RECIPE)
  for named, block in files:
    assert not (root / named).exists()
    (root / named).write_text(block)
  return len(files)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
  """A copy of the checkout that has the new system."""
  root = tmp_path_factory.mktemp("checkout")
  settings = ("setup.cfg", "pyproject.toml", "ruff.toml")
  checkouts.copy(root, "resjax", "configs", "tests", "docs/systems", "docs/findings", *settings)
  assert follow(root) == 3
  return root


def run(copied, *command):
  env = {**os.environ, "XLA_FLAGS": xla.QUICK, "PYTHONPATH": os.fspath(copied)}
  return subprocess.run(
    [sys.executable, "-m", *command], cwd=copied, env=env, capture_output=True, text=True
  )


@pytest.mark.slow
def test_the_recipe_passes_the_conformance_tests(copied):
  # The parametrised tests of the new name, and those that compare lists of all names.
  chosen = f"{NAME} or every_registered or config_can_hold or signatures"
  ignored = [f"--ignore={path}" for path in ("tests/combinators/recipe_test.py",)]
  done = run(
    copied, "pytest", "-q", "-p", "no:cacheprovider", "-m", "not release", "-k", chosen, *ignored,
    "tests/combinators",
  )  # fmt: skip
  assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
  assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 20, done.stdout[-500:]


def test_the_recipe_passes_the_linter(copied):
  pytest.importorskip("ruff")
  for command in ("check", "format --check"):
    done = run(
      copied, "ruff", *command.split(), "resjax", "configs", "tests/helpers/systems", "docs"
    )
    assert done.returncode == 0, done.stdout
