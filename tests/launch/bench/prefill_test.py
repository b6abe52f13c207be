"""The benchmark of a prefill runs, and reports what it says."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.release
def test_a_small_decoder(tmp_path):
  flags = ["--layers=2", "--d_model=128", "--lengths=32,300", "--repeats=2", f"--out={tmp_path}"]
  environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    [sys.executable, "-m", "launch.bench.prefill", *flags],
    cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / "bench_prefill.json").read_text())
  assert report == json.loads(done.stdout)
  assert list(report["cases"]) == ["32", "300"]
  for case in report["cases"].values():
    assert case["temporary_bytes"] > 0 and case["resjax"]["samples"] == 2
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
      medians = [case[name]["median_ms"] for name in ("resjax", "transformers")]
      assert case["resjax over transformers"] == pytest.approx(medians[0] / medians[1])
      assert case["difference"] < 1e-4
