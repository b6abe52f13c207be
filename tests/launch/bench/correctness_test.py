"""The check of the kernels on a GPU: what it tells, and that a case which dies costs no other."""

import json
import subprocess
import sys

import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.helpers.runs import REPOSITORY, environment

# A worker in which case 1 aborts, case 3 hangs, and the check of case 4 fails.
WORKER = """
import os, sys, time
from pathlib import Path
from launch.bench import correctness

def check(case):
  number = correctness.cases().index(case)
  if number == 1:
    os.abort()
  if number == 3:
    time.sleep(600)
  if number == 4:
    raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
  return {"out_error": 0.0, "status": "ok"}

correctness._START = 0.0
numbers = [int(word) for word in sys.argv[1].split(",")]
correctness.work(numbers, check, Path(sys.argv[2]), deadline=3.0)
"""
PARENT = """
import json, sys
from pathlib import Path
from launch.bench import correctness

def command(numbers, file):
  return [sys.executable, "-c", sys.argv[1], ",".join(map(str, numbers)), str(file)]

out, budget = Path(sys.argv[2]), float(sys.argv[3])
records = correctness.supervise(list(range(6)), command, out, 3.0, budget)
print(json.dumps([(record["number"], record["status"]) for record in records]))
"""


def run(*words):
  return subprocess.run(
    [sys.executable, *words], cwd=REPOSITORY, env=environment(), capture_output=True, text=True,
    check=False,
  )  # fmt: skip


@pytest.mark.slow
def test_a_case_that_dies_or_hangs_costs_no_other(tmp_path):
  done = run("-c", PARENT, WORKER, str(tmp_path), "240")
  assert done.returncode == 0, done.stderr
  status = dict(json.loads(done.stdout.splitlines()[-1]))
  assert list(status) == list(range(6))
  assert status[0] == status[2] == status[5] == "ok"
  assert status[1].startswith("killed by SIGABRT")
  assert status[3] == "over its deadline of 3 s"
  assert status[4] == "RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS"
  written = json.loads((tmp_path / "correctness.json").read_text())["records"]
  assert [record["number"] for record in written] == list(range(6))


def test_a_worker_that_does_not_start_ends_the_check(tmp_path):
  done = run("-c", PARENT, "raise SystemExit(1)", str(tmp_path), "240")
  assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1]) == []


def test_cases_reach_every_kernel_dtype_and_width():
  shown = (
    "import dataclasses, json; from launch.bench import correctness\n"
    "print(json.dumps([dataclasses.asdict(case) for case in correctness.cases()]))\n"
    "print(len({str(case) for case in correctness.cases()}))"
  )
  text, count = run("-c", shown).stdout.splitlines()
  cases = json.loads(text)
  assert len(cases) >= 60 and int(count) >= len(cases) - 2
  dtypes = {"float32", "float16", "bfloat16"}
  for kind in ("direct", "block", "merge", "mhc"):
    own = [case for case in cases if case["kind"] == kind]
    assert {case["dtype"] for case in own} == dtypes - ({"float16"} if kind == "mhc" else set())
    assert {768, 2048} <= {case["width"] for case in own}
  assert {4096, 7168, 8192} <= {case["width"] for case in cases}
  assert max(case["tokens"] * case["width"] * case["recent"] for case in cases) > 2**30
  small = [index for index, case in enumerate(cases) if case["tokens"] <= 5]
  assert small == list(range(len(small)))


@pytest.mark.skipif(
  not hasattr(plgpu, "InterpretGPUParams"), reason="this JAX has no interpreter of GPU kernels"
)
@pytest.mark.release
def test_the_kernels_are_right_in_the_interpreter(tmp_path):
  words = ["--interpret", "--again=1", "--only=T=5", f"--out={tmp_path}", "--deadline=300"]
  done = run("-m", "launch.bench", "correctness", *words)
  assert done.returncode == 0, done.stdout + done.stderr
  records = json.loads((tmp_path / "correctness.json").read_text())["records"]
  assert len(records) == 13 and all(record["same_bits"] for record in records)
  assert {record["case"].split()[0] for record in records} == {
    "direct", "block", "merge", "mhc", "fixed"
  }  # fmt: skip
