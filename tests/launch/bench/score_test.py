"""The benchmark of the scorer runs, and reports what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.release
def test_a_small_decoder(tmp_path):
  flags = ["--layers=2", "--d_model=64", "--max_length=128", "--batches=1", "--repeats=2"]
  environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    [sys.executable, "-m", "launch.bench.score", *flags, f"--out={tmp_path}"],
    cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / "bench_score.json").read_text())
  assert report == json.loads(done.stdout)
  speed = report["tokens_per_second"]
  assert report["tokens"]["text"] == report["tokens"]["plain"] == 512
  for side, ratio in report["ratio"].items():
    assert ratio == pytest.approx(speed[side] / speed["plain"]) and ratio > 0
  assert set(report["programs"]) <= {64, 96, 128}
