"""The benchmark of a decoded token runs, and its ratios are those of its costs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


def report(tmp_path, *flags):
  command = [sys.executable, "-m", "launch.bench.decode", *flags, f"--out={tmp_path}"]
  environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  found = json.loads((tmp_path / "bench_decode.json").read_text())
  assert found == json.loads(done.stdout)
  costs = found["cost"]
  assert found["ratio"] == {name: cost / costs["standard"] for name, cost in costs.items()}
  assert min(costs.values()) > 0
  return found


@pytest.mark.slow
def test_time_of_a_token_here(tmp_path):
  sizes = ["--config.model.num_layers=2", "--config.model.d_model=32", "--config.data.seq_len=64"]
  flags = ["--config=configs/tiny.py", *sizes, "--tokens=8", "--steps=4", "--repeats=2"]
  found = report(tmp_path, "--residuals=standard,gate,attn_res", *flags)
  assert list(found["cost"]) == ["standard", "gate", "attn_res"]
  assert found["unit"] == "microseconds per token step"
