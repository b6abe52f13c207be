"""How a process finds its place among others; with real ones in tests/train/processes_test.py."""

import pytest

from resjax.base import processes
from resjax.base.processes import agreement

ADDRESS = "JAX_COORDINATOR_ADDRESS"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
  for name in (ADDRESS, "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "SLURM_STEP_NODELIST"):
    monkeypatch.delenv(name, raising=False)


def initialize():
  processes.initialize(bringup_seconds=1, heartbeat_seconds=10)


@pytest.mark.parametrize(
  ("variables", "message"),
  [
    ({ADDRESS: "a:1"}, "JAX_NUM_PROCESSES and JAX_PROCESS_ID are not"),
    ({"JAX_NUM_PROCESSES": "2"}, "JAX_COORDINATOR_ADDRESS and JAX_PROCESS_ID is missing"),
    ({ADDRESS: "a:1", "JAX_NUM_PROCESSES": "2"}, "JAX_PROCESS_ID is missing"),
    ({ADDRESS: "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID=2 and"),
    ({ADDRESS: "a:1", "JAX_NUM_PROCESSES": "x", "JAX_PROCESS_ID": "0"}, "must be numbers"),
    ({ADDRESS: "a", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "'a' must be HOST:PORT"),
  ],
)
def test_an_incomplete_environment_is_named(monkeypatch, variables, message):
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  with pytest.raises(ValueError, match=message):
    initialize()
  assert not processes.active()


def test_one_process_stays_alone(monkeypatch):
  initialize()
  # JAX would give the one task of a node the first of its GPUs alone.
  for name, value in {
    "JOB_ID": 7,
    "STEP_NODELIST": "a",
    "NTASKS": 1,
    "PROCID": 0,
    "LOCALID": 0,
  }.items():
    monkeypatch.setenv(f"SLURM_{name}", str(value))
  initialize()
  for name, value in {ADDRESS: "a:1", "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}.items():
    monkeypatch.setenv(name, value)
  initialize()
  assert not processes.active()
  assert processes.first("name", lambda: 3) == 3
  assert processes.gather("name", 4) == [4]
  processes.shutdown()


def test_what_is_for_one_process_refuses_several(monkeypatch):
  processes.refuse_several("resjax export")
  for name, value in {ADDRESS: "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}.items():
    monkeypatch.setenv(name, value)
  with pytest.raises(ValueError, match=r"resjax export runs in one process, .* start it once"):
    processes.refuse_several("resjax export")
  monkeypatch.setenv("JAX_NUM_PROCESSES", "1")
  monkeypatch.setenv("JAX_PROCESS_ID", "0")
  processes.refuse_several("resjax export")


def test_errors_of_one_process_are_left_as_they_are():
  assert processes.explain(ValueError("Gloo: closed by peer")) == "Gloo: closed by peer"


class Client:
  """Keys and values of processes, listed as their service does, in the order of the texts."""

  def __init__(self, found):
    self.found = found

  def key_value_set(self, key, value):
    self.found[key] = value

  def key_value_dir_get(self, folder):
    return sorted(item for item in self.found.items() if item[0].startswith(folder))


def test_values_are_gathered_in_the_order_of_processes(monkeypatch):
  count = 12
  others = {f"resjax/gather/name/{index}": str(index) for index in range(1, count)}
  monkeypatch.setattr(agreement.runtime.global_state, "client", Client(others))
  monkeypatch.setattr(agreement, "active", lambda: True)
  monkeypatch.setattr(agreement.jax, "process_count", lambda: count)
  monkeypatch.setattr(agreement.jax, "process_index", lambda: 0)
  assert processes.gather("name", 0) == list(range(count))
