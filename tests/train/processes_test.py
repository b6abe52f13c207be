"""Several real processes are one run: the same data, the same losses, one end."""

import os
import pathlib
import signal
import socket
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from resjax.base import processes
from resjax.base.records.metrics_log import read_metrics
from resjax.train.common_start import introduce
from tests.helpers import xla
from tests.helpers.runs import (
  ends,
  finish,
  free_port,
  last_step,
  small_command,
  start,
  start_together,
  wait_for,
  write_text,
)

STEPS = 12
MEASURED = {"train__alignment_every": 6}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
  return write_text(tmp_path_factory.mktemp("processes"))


@pytest.fixture(scope="module", autouse=True)
def compile_once(root):
  before = dict(os.environ)
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(root / "cache")
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
  yield
  os.environ.clear()
  os.environ.update(before)


def a_run(root, name, **settings) -> list[str]:
  return small_command(root, root / name, **({"train__steps": STEPS} | settings))


def numbers(workdir: pathlib.Path) -> dict[tuple[int, str], float]:
  return {
    (record["step"], key): value
    for record in read_metrics(workdir / "metrics.jsonl")
    for key, value in record.items()
    if key != "step" and not key.startswith(("time/", "goodput/", "memory/"))
  }


@pytest.fixture(scope="module")
def alone(root) -> dict:
  finish(a_run(root, "alone", **MEASURED))
  return numbers(root / "alone")


def assert_as_alone(found: dict, alone: dict) -> None:
  # fp32 sums over 256 tokens in another order, carried through 12 steps.
  assert found.keys() == alone.keys()
  for key, value in alone.items():
    # Of 32 tokens in each of 16 rows some may change places with others of the same logit.
    rtol = 1e-3 if key[1].startswith("alignment/") else 2e-6
    assert (found[key] is None) == (value is None), key
    if value is not None:
      np.testing.assert_allclose(found[key], value, rtol=rtol, atol=1e-7, err_msg=str(key))


@pytest.mark.slow
def test_two_processes_train_as_one(root, alone):
  first, second = ends(start_together(2, a_run(root, "two", **MEASURED)))
  assert first[0] == second[0] == 0, first[1] + second[1]
  assert_as_alone(numbers(root / "two"), alone)
  assert "process 0 of 2" in first[1] and "1 of 2 devices" in first[1]
  assert "process 1 of 2" in second[1] and "step 12" not in second[1]
  assert len([line for line in second[1].splitlines() if "[Gloo]" not in line]) == 1


@pytest.mark.release
def test_four_processes_train_as_one(root, alone):
  # Two processes read the same rows, and each holds the half of their tokens.
  mesh = {"mesh__data": 1, "mesh__fsdp": 2, "mesh__sequence": 2, "sharding__name": "long_context"}
  found = ends(start_together(4, a_run(root, "four", **mesh, **MEASURED)))
  assert [code for code, _ in found] == [0] * 4, found
  assert_as_alone(numbers(root / "four"), alone)


@pytest.mark.release
def test_two_processes_with_experts_of_their_own_train_as_one(root):
  experts = {"model__moe__num_experts": 4, "model__moe__expert_dim": 64, "train__log_every": 1}
  finish(a_run(root, "all experts", **experts))
  both = a_run(root, "some experts", mesh__data=1, mesh__expert=2, **experts)
  found = ends(start_together(2, both))
  assert [code for code, _ in found] == [0, 0], found
  records = numbers(root / "some experts")
  assert (1, "router/max_load") in records
  assert_as_alone(records, numbers(root / "all experts"))


@pytest.mark.release
def test_batches_are_the_same_rows_whatever_reads_them(root):
  arguments = [sys.executable, "-m", "tests.helpers.batch_process", str(root), "5"]

  def read(count):
    found = ends(start_together(count, arguments, XLA_FLAGS=xla.devices(4 // count)))
    assert [code for code, _ in found] == [0] * count, found
    lines = [line.split("|") for _, output in found for line in output.splitlines()]
    return [line[1:] for line in lines if line[0] == "mesh"]

  one = read(1)
  digests = {digest for _, _, digest in one}
  assert len(one) == 7 and len(digests) == 1
  for count in (2, 4):
    several = read(count)
    assert {digest for _, _, digest in several} == digests
    for mesh in dict.fromkeys(name for name, _, _ in several):
      rows = [row for name, rows, _ in several if name == mesh for row in rows.split(",")]
      assert set(rows) == set("01234567")
      copies = count if mesh in ("tensor", "sequence") else 1
      if count == 4 and mesh in ("rows in two processes", "both"):
        copies = 2
      assert sorted(rows) == sorted("01234567" * copies)
    scattered = [rows for name, rows, _ in several if name == "scattered"]
    assert (scattered[0] == "0,1,4,5") == (count == 2)


@pytest.mark.release
def test_tasks_of_slurm_find_each_other(root):
  arguments = [sys.executable, "-m", "tests.helpers.batch_process", str(root), "1"]
  job = {"SLURM_JOB_ID": 7, "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": 2}
  job |= {"JAX_COORDINATOR_PORT": free_port()}
  job |= {"XLA_FLAGS": xla.devices(2)}
  found = ends([start(arguments, **job, SLURM_PROCID=i, SLURM_LOCALID=i) for i in range(2)])
  assert [code for code, _ in found] == [0, 0], found
  assert "mesh|data|0,1,2,3|" in found[0][1] and "mesh|data|4,5,6,7|" in found[1][1]


def assert_one_line(code: int, output: str) -> None:
  """A process whose other one is gone says so in one line, and nobody's stack is printed."""
  assert code == 1, output
  (line,) = [line for line in output.splitlines() if "died" in line]
  assert line.startswith("error: another process died, or the network between them ("), output
  assert line.endswith("in all processes goes on from the newest checkpoint"), output
  stacks = ("Fatal", "Traceback", "most recent call first", "stack trace", "terminate called")
  assert not [line for line in output.splitlines() if any(word in line for word in stacks)]
  assert "make room" not in output


@pytest.mark.release
def test_killed_process_ends_the_others_and_the_restart_equals_the_straight_run(root):
  settings = {"train__steps": 60, "train__eval_every": 20, "checkpoint__every": 5}
  first, second = ends(start_together(2, a_run(root, "undisturbed", **settings)))
  assert first[0] == second[0] == 0, first[1] + second[1]
  arguments = a_run(root, "killed", **settings)
  for victim in (1, 0):
    processes = start_together(2, [*arguments, "--heartbeat_seconds=10"])
    before = last_step(root / "killed")
    wait_for(processes[0], lambda before=before: last_step(root / "killed") >= before + 12)
    processes[victim].send_signal(signal.SIGKILL)
    (code, output), _ = ends([processes[1 - victim], processes[victim]], timeout=60)
    assert_one_line(code, output)
  first, second = ends(start_together(2, arguments))
  assert first[0] == second[0] == 0, first[1] + second[1]
  assert "resuming after step" in first[1]
  assert numbers(root / "killed") == numbers(root / "undisturbed")


@pytest.mark.slow
def test_killed_process_in_a_save_ends_the_other(root):
  settings = {"train__steps": 10**6, "train__eval_every": 0, "checkpoint__every": 10}
  for victim in (1, 0):
    arguments, folder = a_run(root, f"saving-{victim}", **settings), root / f"saving-{victim}"
    processes = start_together(2, [*arguments, "--heartbeat_seconds=10"])
    wait_for(
      processes[0], lambda at=folder: any("tmp" in path.name for path in at.glob("checkpoints/*"))
    )
    processes[victim].send_signal(signal.SIGKILL)
    (code, output), _ = ends([processes[1 - victim], processes[victim]], timeout=60)
    assert_one_line(code, output)


@pytest.mark.release
def test_silent_process_ends_the_others(root):
  arguments = a_run(root, "silent", train__steps=10**6, train__eval_every=0)
  processes = start_together(2, [*arguments, "--heartbeat_seconds=10"])
  wait_for(processes[0], lambda: last_step(root / "silent") >= 5)
  processes[1].send_signal(signal.SIGSTOP)
  [(code, output)] = ends(processes[:1], timeout=60)
  processes[1].kill()
  assert_one_line(code, output)


@pytest.mark.slow
def test_sigterm_to_one_process_stops_all_at_one_step(root):
  settings = {"train__steps": 400, "train__eval_every": 100, "checkpoint__every": 1000}
  arguments = a_run(root, "preempted", **settings)
  for receiver in (1, 0):
    processes = start_together(2, arguments)
    before = last_step(root / "preempted")
    wait_for(processes[0], lambda before=before: last_step(root / "preempted") >= before + 3)
    processes[receiver].send_signal(signal.SIGTERM)
    found = ends(processes)
    assert [code for code, _ in found] == [0, 0], found
    step = max(int(path.name) for path in (root / "preempted" / "checkpoints").iterdir())
    for _, output in found:
      assert f"stopped after step {step}, which is saved" in output
    assert last_step(root / "preempted") == step < 400


@pytest.mark.slow
def test_sigterm_before_the_first_step(root):
  processes = start_together(2, a_run(root, "early"))
  wait_for(processes[0], (root / "early" / ".lock").exists)
  processes[1].send_signal(signal.SIGTERM)
  found = ends(processes)
  assert [code for code, _ in found] == [0, 0], found
  assert all("stopped" in output for _, output in found), found


@pytest.mark.slow
def test_process_with_another_config_is_named(root):
  place = {"JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}", "JAX_NUM_PROCESSES": 3}
  seeds = (0, 0, 1)
  processes = [
    start(a_run(root, "odd", seed=seed, train__batch_size=9), **place, JAX_PROCESS_ID=index)
    for index, seed in enumerate(seeds)
  ]
  for code, output in ends(processes):
    assert code == 1
    errors = [line for line in output.splitlines() if "another config" in line]
    assert errors, output
    assert f"process 2 on {socket.gethostname()} has another config" in errors[0]
    assert "Traceback" not in output
  assert not (root / "odd").exists()


@pytest.mark.parametrize("odd", range(3))
def test_the_process_that_differs_from_most_is_named(monkeypatch, odd):
  found = [
    {"host": f"host{index}", "identity": {"jax": "1", "config": "b" if index == odd else "a"}}
    for index in range(3)
  ]
  monkeypatch.setattr(jax, "process_count", lambda: 3)
  monkeypatch.setattr(processes, "gather", lambda name, value: found)
  with pytest.raises(ValueError, match=f"process {odd} on host{odd} has another config .* not a;"):
    introduce(SimpleNamespace(resolved={}))


@pytest.mark.slow
def test_error_on_process_0_ends_all(root):
  (root / "file").write_text("")
  found = ends(start_together(2, a_run(root, "file/below")))
  assert [code for code, _ in found] == [1, 1]
  assert "error: cannot write to" in found[0][1] and found[0][1].count("error:") == 1
  assert "process 1 ends with process 0" in found[1][1] and "cannot write to" in found[1][1]


@pytest.mark.slow
def test_bringup_fails_in_one_line(root):
  with socket.socket() as taken:
    taken.bind(("", 0))
    taken.listen()
    port = taken.getsockname()[1]
    place = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": 2}
    first = start(a_run(root, "taken"), **place, JAX_PROCESS_ID=0)
    place["JAX_COORDINATOR_ADDRESS"] = f"localhost:{free_port()}"
    arguments = [*a_run(root, "missing"), "--bringup_seconds=3"]
    second = start(arguments, **place, JAX_PROCESS_ID=1)
    (code, output), (other_code, other_output) = ends([first, second])
  errors = [line for line in output.splitlines() if "error: " in line]
  assert code == 1 and len(errors) == 1
  assert f"process 0 of 2 on {socket.gethostname()}" in errors[0]
  assert "check that nothing else uses the coordinator's port" in errors[0]
  assert other_code == 1 and "Traceback" not in other_output
  assert "not all processes were there after 3 s; check that" in other_output
