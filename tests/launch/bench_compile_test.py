"""Compile time and memory of a training step, as ratios of one run of the benchmark."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def measured(*flags):
  environment = {**os.environ, "XLA_FLAGS": "", "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"}
  command = [sys.executable, "-m", "launch.bench_compile", *flags]
  done = subprocess.run(
    command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def check(report):
  assert report["block_attn_res over standard"] <= 1.5
  assert report["twice the layers"] <= 1.15
  bytes_of = {name: case["temporary_bytes"] for name, case in report["cases"].items()}
  assert bytes_of["block_attn_res-48"] <= 2.2 * bytes_of["block_attn_res-24"]


@pytest.mark.slow
def test_cpu():
  check(measured("--rounds=5"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `tpu`")
def test_tpu_that_is_not_there():
  check(measured("--topology=v5e:2x4", "--rounds=1"))
