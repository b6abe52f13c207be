"""Several processes save together by the clock of the first, and any number of them restores."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from resjax.train.checkpoint.reader import saved_steps
from tests.helpers import xla
from tests.helpers.checkpoints import assert_restores, fill, opened

REPOSITORY = pathlib.Path(__file__).parents[3]


def together(
  folder: pathlib.Path, count: int, start: int, last: int, spoiled: int = 0
) -> list[dict]:
  """Runs processes of 8 devices in all; returns what each printed."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
  environment = {**os.environ, "XLA_FLAGS": xla.devices(8 // count), "JAX_PLATFORMS": "cpu"}
  command = [sys.executable, "-m", "tests.helpers.checkpoint_process", str(folder), str(port)]
  processes = [
    subprocess.Popen(
      [*command, *map(str, (index, count, start, last, spoiled))],
      cwd=REPOSITORY,
      env=environment,
      text=True,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
    )
    for index in range(count)
  ]
  outputs = [process.communicate(timeout=200) for process in processes]
  for process, (_, errors) in zip(processes, outputs, strict=True):
    assert process.returncode == 0, errors[-3000:]
  return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.slow
def test_two_processes_then_one_then_two(tmp_path):
  first, second = together(tmp_path, count=2, start=0, last=9)
  assert first == second == {"said": [], "saved": [4, 7]}
  with opened(tmp_path, every=0) as checkpoints:
    assert_restores(checkpoints, 7)
  fill(tmp_path, 8)
  path = tmp_path / "8" / "optimizer" / "_METADATA"
  path.write_bytes(path.read_bytes()[:-1])
  first, second = together(tmp_path, count=2, start=7, last=12)
  assert first == second
  assert first["saved"] == [11]
  (line,) = first["said"]
  assert line.startswith("checkpoint 8 is damaged (optimizer/_METADATA has ")
  assert saved_steps(tmp_path) == [7, 11]


@pytest.mark.slow
def test_two_processes_agree_that_a_save_failed(tmp_path):
  fill(tmp_path, 1)
  first, second = together(tmp_path, count=2, start=1, last=9, spoiled=5)
  assert first == second and first["saved"] == [5, 8]
  (line,) = first["said"]
  assert line.startswith("the checkpoint of step 5 was written and cannot be read (params/manifest")
  assert line.endswith("that of step 1 is the last one; the run goes on")
  assert saved_steps(tmp_path) == [1, 8]
