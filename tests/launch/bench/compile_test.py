"""The compile benchmark runs, and the program that it compiles has the size it should have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.libtpu import needs_libtpu

REPOSITORY = Path(__file__).parents[3]


def measured(*flags):
  environment = {**os.environ, "XLA_FLAGS": "", "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"}
  command = [sys.executable, "-m", "launch.bench.compile", *flags]
  done = subprocess.run(
    command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def check(report):
  """Exact figures only; the seconds of one run are the benchmark's business."""
  assert report["block_attn_res over standard"] > 0 and report["twice the layers"] > 0
  small, large = (report["cases"][f"block_attn_res-{layers}"] for layers in (24, 48))
  # The program does not grow with depth, so neither does the time to compile it.
  assert large["instructions"] <= 1.01 * small["instructions"]
  # Measured 1.55; a nested or unrolled scan is far above.
  assert small["instructions"] <= 1.65 * report["cases"]["standard-24"]["instructions"]
  assert large["temporary_bytes"] <= 2.2 * small["temporary_bytes"]


@pytest.mark.release
def test_cpu():
  check(measured("--rounds=1"))


@pytest.mark.slow
@needs_libtpu
def test_tpu_that_is_not_there():
  check(measured("--topology=v5e:2x4", "--rounds=1"))
