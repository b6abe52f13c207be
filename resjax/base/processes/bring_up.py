"""How the processes of a run find each other at their start."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import clusters

from resjax.base.processes import aborts, agreement, heaps

_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def initialize(*, bringup_seconds: int, heartbeat_seconds: int) -> None:
  """Joins the other processes of the run, if there are any; called before any device is used.

  The environment variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID tell where
  they are, or else JAX finds them (SLURM, TPU pods, Kubernetes jobs, Open MPI). A run of one
  process only keeps the number of its heaps small.

  Args:
    bringup_seconds: how long to wait for all processes.
    heartbeat_seconds: when a process gives no sign of life for so long, all others end.

  Raises:
    ValueError: a variable is missing or wrong, or the coordinator's port is taken.
  """
  heaps.keep_few()
  place = _place()
  if place is None:
    return
  _check_port(place)
  # Python handles SIGTERM until `listen_for_preemption` is called.
  jax.config.update("jax_enable_preemption_service", False)
  with _deadline(bringup_seconds, place), aborts.explained(agreement.end_without_coordinator):
    try:
      jax.distributed.initialize(
        **place,
        # At its own limit JAX aborts with a stack trace, so it must be later than ours.
        initialization_timeout=bringup_seconds + 60,
        heartbeat_timeout_seconds=heartbeat_seconds,
      )
    except RuntimeError as error:
      raise ValueError(_cannot_join(place, agreement.first_line(error))) from None
  agreement.joined()


def refuse_several(command: str) -> None:
  """Raises a ValueError where this process was started as one of several.

  Args:
    command: the name of a command that must run in a single process.
  """
  if _place() is not None:
    raise ValueError(
      f"{command} runs in one process, and this is one of several; start it once, without "
      f"{', '.join(_VARIABLES)}, srun or mpirun"
    )


def _place() -> dict[str, Any] | None:
  """Returns arguments of `jax.distributed.initialize`; None if this process is alone.

  They are empty where JAX finds them itself.
  """
  address, count, index = (os.environ.get(name) for name in _VARIABLES)
  if count is None and index is None:
    cluster = _cluster()
    if cluster is None and address is not None:
      raise ValueError(f"{_VARIABLES[0]} is set, but {_VARIABLES[1]} and {_VARIABLES[2]} are not")
    return {} if cluster is not None and cluster.get_process_count() > 1 else None
  if address is None or count is None or index is None:
    missing = " and ".join(name for name in _VARIABLES if os.environ.get(name) is None)
    raise ValueError(f"{missing} is missing; several processes need {', '.join(_VARIABLES)}")
  if not (count.isdecimal() and index.isdecimal() and int(index) < int(count)):
    raise ValueError(
      f"JAX_PROCESS_ID={index} and JAX_NUM_PROCESSES={count} must be numbers, the first one from 0 "
      "to the second minus 1"
    )
  if not address.rpartition(":")[2].isdecimal():
    raise ValueError(f"JAX_COORDINATOR_ADDRESS={address!r} must be HOST:PORT")
  found = {"coordinator_address": address, "num_processes": int(count), "process_id": int(index)}
  return found if int(count) > 1 else None


def _check_port(place: dict[str, Any]) -> None:
  """Raises ValueError where process 0 cannot open its port; JAX would abort with a stack trace."""
  if place.get("process_id") != 0:
    return
  port = int(place["coordinator_address"].rpartition(":")[2])
  with socket.socket() as probe:
    # The port of a run that has just ended counts as free.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      probe.bind(("", port))
    except OSError as error:
      raise ValueError(_cannot_join(place, error.strerror or str(error))) from None


def _cluster() -> type[clusters.ClusterEnv] | None:
  """Returns the cluster that `jax.distributed.initialize` would detect."""
  known = [kind for kind in clusters.ClusterEnv._cluster_types if not kind.opt_in_only_method]
  return next((kind for kind in known if kind.is_env_present()), None)


@contextlib.contextmanager
def _deadline(seconds: int, place: dict[str, Any]) -> Iterator[None]:
  """Ends the process with a line that says what to check, unless the context is left in time."""

  def give_up() -> None:
    agreement.end(
      f"error: {_who(place)}: not all processes were there after {seconds} s; check that each one "
      "was started, that all have the same JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES, that no "
      "firewall closes the coordinator's port (JAX_COORDINATOR_PORT sets it), and that no proxy "
      "variable is set",
      1,
    )

  timer = threading.Timer(seconds, give_up)
  timer.daemon = True
  timer.start()
  # With its usual handler Python would react to Ctrl-C only when JAX returns.
  before = signal.signal(signal.SIGINT, signal.SIG_DFL)
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, before)
    timer.cancel()


def _cannot_join(place: dict[str, Any], reason: str) -> str:
  return (
    f"{_who(place)} cannot join the others: {reason}; check that nothing else uses the "
    "coordinator's port, or set another JAX_COORDINATOR_ADDRESS or JAX_COORDINATOR_PORT"
  )


def _who(place: dict[str, Any]) -> str:
  if not place:
    return f"the process on {socket.gethostname()}"
  index, count, address = place["process_id"], place["num_processes"], place["coordinator_address"]
  return f"process {index} of {count} on {socket.gethostname()} (coordinator {address})"
