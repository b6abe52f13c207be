"""docs/first_steps.md, followed to the letter in an empty folder, from this checkout's wheel."""

import os
import subprocess
import sys

import pytest

from tests.helpers import checkouts, doc_commands
from tests.helpers.fakes import ROOT

PAGE = ROOT / "docs" / "first_steps.md"


def shell(script, cwd, **variables):
  """Runs a script that stops at its first failure, and returns what it printed."""
  keep = {
    name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "HOME", "PATH"))
  }
  done = subprocess.run(
    ["bash", "-euxc", script],
    cwd=cwd,
    env={**keep, "JAX_PLATFORMS": "cpu", **variables},
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
  )
  assert done.returncode == 0, done.stdout[-4000:]
  return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
  """A folder with the wheel of this checkout, built from a copy."""
  root = tmp_path_factory.mktemp("checkout")
  checkouts.copy(root, *checkouts.WHEEL)
  folder = tmp_path_factory.mktemp("wheels")
  shell(f"{sys.executable} -m pip wheel --quiet --no-deps --wheel-dir {folder} {root}", root)
  return folder


@pytest.mark.release
def test_a_reader_succeeds(wheels, tmp_path):
  python = "".join(f"python - <<'END'\n{code}END\n" for code in doc_commands.python(PAGE))
  script = f"{doc_commands.script(PAGE)}\n{python}"
  empty = tmp_path / "reader"
  empty.mkdir()
  find = f"{wheels} {os.environ.get('PIP_FIND_LINKS', '')}"
  printed = shell(script, empty, PIP_FIND_LINKS=find)
  assert "no shift" in (empty / "runs/analysis/report.html").read_text()
  assert printed.rstrip().endswith("(2, 16, 64)")
  assert {"runs", "data", "env"} == {path.name for path in empty.iterdir()}
