"""Runs a benchmark as its users do."""

import json
import os
import subprocess
import sys

from tests.helpers.fakes import ROOT


def report(name, folder, *flags):
  """Returns what `resjax bench NAME` writes into a folder, which is what it prints."""
  done = subprocess.run(
    [sys.executable, "-m", f"launch.bench.{name}", *flags, f"--out={folder}"],
    cwd=ROOT, env={**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"},
    capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  found = json.loads((folder / f"bench_{name}.json").read_text())
  assert found == json.loads(done.stdout)
  return found
