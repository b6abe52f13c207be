"""The benchmark of runs in one program runs, and reports both kinds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.release
def test_two_small_runs(tmp_path):
  sizes = ["--runs=2", "--d_model=32", "--rows=1", "--seq_len=16", "--repeats=2"]
  command = [sys.executable, "-m", "launch.bench.together", *sizes, f"--out={tmp_path}"]
  environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / "bench_together.json").read_text())
  assert report == json.loads(done.stdout)
  both, single = report["tokens_per_second"].values()
  assert report["together over one by one"] == pytest.approx(both / single)
