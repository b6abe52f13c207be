"""The benchmark of an analysis runs, and reports what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.release
def test_a_small_decoder(tmp_path):
  flags = ["--layers=2", "--d_model=64", "--vocab_size=5000", "--seq_len=64", "--tokens=512"]
  environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    [sys.executable, "-m", "launch.bench.analyze", *flags, "--repeats=1", f"--out={tmp_path}"],
    cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / "bench_analyze.json").read_text())
  assert report == json.loads(done.stdout) and report["tokens"] == 512
  seconds = report["seconds"]
  assert report["ratio"] == pytest.approx(seconds["analysis"] / seconds["products"])
  assert report["core_ratio"] > 0 and report["peak_bytes"] > 10**7
