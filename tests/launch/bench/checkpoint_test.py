"""The benchmark of checkpoints runs, and a save holds up its caller for as long as is promised."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.release
@pytest.mark.parametrize("devices", [1, 8])
def test_half_a_gigabyte_blocks_no_more_than_two_seconds(tmp_path, devices):
  flags = f"--xla_force_host_platform_device_count={devices}"
  environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
  command = [sys.executable, "-m", "launch.bench.checkpoint", "--repeats=2", f"--folder={tmp_path}"]
  done = subprocess.run(
    command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  report = json.loads(done.stdout)
  assert report["devices"] == devices
  assert report["bytes"] == pytest.approx(500e6, rel=0.02)
  assert report["blocking_seconds"] <= 2
  assert report["blocking_seconds"] < report["total_seconds"]
  assert 0 < report["opening_seconds"] < report["total_seconds"]
  assert not list(tmp_path.iterdir())
