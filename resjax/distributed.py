"""Several processes as one run: bring-up, what they agree on, how one that ends ends all.

JAX's coordination service, which runs beside process 0, has no public interface for messages; its
private parts are used here and nowhere else.
"""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
from jax._src import clusters
from jax._src import distributed as runtime
from jax.experimental import multihost_utils

_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_END, _LEFT = "resjax/end", "resjax/left/"
_POLL = 0.5  # seconds
_GRACE = 10.0  # seconds that process 0, which the others hear through, stays after an end

# Collectives on CPU and GPU, and the coordination service.
_LOST = re.compile(
  r"gloo|nccl|closed by peer|reset by peer|broken pipe|heartbeat|^UNAVAILABLE", re.I
)

_up = threading.Event()  # this process and the others have found each other
_watcher: threading.Thread  # of `_watch`, from then on


def initialize(*, bringup_seconds: int, heartbeat_seconds: int) -> None:
  """Joins the other processes of the run, if there are any; before any device is touched.

  They are found through JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or else by
  JAX (SLURM, TPU pods, Kubernetes jobs, Open MPI). A run of one process stays alone.

  Args:
    bringup_seconds: how long to wait until all are there.
    heartbeat_seconds: a process without a sign of life for so long ends all others.

  Raises:
    ValueError: a variable is missing or wrong, or the coordinator's port is taken.
  """
  place = _place()
  if place is None:
    return
  _check_port(place)
  # SIGTERM is left to Python until `listen_for_preemption`.
  jax.config.update("jax_enable_preemption_service", False)
  with _deadline(bringup_seconds, place):
    try:
      jax.distributed.initialize(
        **place,
        # JAX aborts with a stack trace at its own limit, so that one comes later.
        initialization_timeout=bringup_seconds + 60,
        heartbeat_timeout_seconds=heartbeat_seconds,
      )
    except RuntimeError as error:
      raise ValueError(_cannot_join(place, _first_line(error))) from None
  _up.set()
  global _watcher
  _watcher = threading.Thread(target=_watch, daemon=True)
  _watcher.start()


def refuse_several(command: str) -> None:
  """Raises a ValueError where this process was started as one of several.

  Args:
    command: what is for one process alone.
  """
  if _place() is not None:
    raise ValueError(
      f"{command} runs in one process, and this is one of several; start it once, without "
      f"{', '.join(_VARIABLES)}, srun or mpirun"
    )


def active() -> bool:
  """Returns whether this process is one of several."""
  return _up.is_set()


def shutdown() -> None:
  """Leaves the others when all have finished."""
  if not active():
    return
  gather("finish", None)
  first("finished", lambda: None)
  _up.clear()
  _watcher.join()  # Python aborts when it finishes while a thread is inside the client
  jax.distributed.shutdown()


def first(name: str, make: Callable[[], Any]) -> Any:
  """Returns on all processes what `make()` gives on process 0; the others wait for it.

  Args:
    name: used once in a run.
    make: called on process 0 alone; its result is JSON.
  """
  if not active():
    return make()
  client, key = runtime.global_state.client, f"resjax/first/{name}"
  if jax.process_index() == 0:
    client.key_value_set(key, json.dumps(make()))
  while (found := _read(client, key)) is None:
    time.sleep(_POLL)
  return json.loads(found)


def gather(name: str, value: Any) -> list[Any] | None:
  """Returns the JSON values of all processes in their order, on process 0; None on the others.

  Args:
    name: used once in a run.
    value: of this process.
  """
  if not active():
    return [value]
  client, folder = runtime.global_state.client, f"resjax/gather/{name}/"
  client.key_value_set(f"{folder}{jax.process_index()}", json.dumps(value))
  if jax.process_index() != 0:
    return None
  while len(found := client.key_value_dir_get(folder)) < jax.process_count():
    time.sleep(_POLL)
  values = {int(key.rsplit("/", 1)[1]): json.loads(text) for key, text in found}
  return [values[index] for index in range(jax.process_count())]


def listen_for_preemption() -> None:
  """Gives SIGTERM to JAX's preemption service from now on, see `reached_sync_point`."""
  if runtime.global_state.preemption_sync_manager is None:
    jax.config.update("jax_enable_preemption_service", True)
    runtime.global_state.initialize_preemption_sync_manager()


def reached_sync_point(tick: int) -> bool:
  """Returns whether this is the tick at which all processes stop, because one got SIGTERM.

  Args:
    tick: 1, 2, 3, ... in every process alike: JAX answers True at one number alone, the one after
      the highest that a process had reached.
  """
  return multihost_utils.reached_preemption_sync_point(tick)


def explain(error: Exception) -> str:
  """Returns the message of an error; what JAX says when another process is gone, in words."""
  if active() and _LOST.search(str(error)):
    return (
      f"another process died, or the network between them ({_first_line(error)}); its log says "
      "why; the same command in all processes goes on from the newest checkpoint"
    )
  return str(error)


def end(message: str, code: int) -> NoReturn:
  """Prints a line and ends this process, and through it all others, with an exit code.

  It ends at once: a compilation in the background would not let Python finish, and JAX's own
  shutdown waits for processes that will not come.
  """
  print(message, file=sys.stderr)
  if active():
    notice = {"process": runtime.global_state.process_id, "message": message, "code": code}
    notice["host"] = socket.gethostname()
    with contextlib.suppress(RuntimeError):  # another one was first, or the service is gone
      runtime.global_state.client.key_value_set(_END, json.dumps(notice))
  _leave(code)


def _watch() -> None:
  """Ends this process when another one has ended; its main thread may be waiting for that one."""
  own, client = runtime.global_state.process_id, runtime.global_state.client
  while active():
    time.sleep(_POLL)
    notice = json.loads(_read(client, _END) or "null")
    if notice and notice["process"] != own:
      # What this process is about to say itself comes first.
      time.sleep(_POLL)
      who = f"process {notice['process']} on {notice['host']}"
      print(f"process {own} ends with {who}, which says: {notice['message']}", file=sys.stderr)
      _leave(notice["code"])


def _leave(code: int) -> NoReturn:
  state = runtime.global_state
  with contextlib.suppress(RuntimeError):
    if active():
      state.client.key_value_set(f"{_LEFT}{state.process_id}", "", allow_overwrite=True)
      deadline = time.monotonic() + _GRACE
      while state.process_id == 0 and time.monotonic() < deadline:
        if len(state.client.key_value_dir_get(_LEFT)) == state.num_processes:
          break
        time.sleep(_POLL / 5)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def _read(client: Any, key: str) -> str | None:
  try:
    return client.key_value_try_get(key)
  except RuntimeError:  # not there yet; where the service is gone, JAX ends this process
    return None


def _place() -> dict[str, Any] | None:
  """Returns what tells this process its place among several; None if it is alone."""
  given = [os.environ.get(name) for name in _VARIABLES]
  if given[1] is None and given[2] is None:
    cluster = _cluster()
    if cluster is None and given[0] is not None:
      raise ValueError(f"{_VARIABLES[0]} is set, but {_VARIABLES[1]} and {_VARIABLES[2]} are not")
    return {} if cluster is not None and cluster.get_process_count() > 1 else None
  if None in given:
    missing = " and ".join(n for n, value in zip(_VARIABLES, given, strict=True) if value is None)
    raise ValueError(f"{missing} is missing; several processes need {', '.join(_VARIABLES)}")
  address, count, index = given
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
  """Raises ValueError where process 0 could not serve the others; JAX would fail less gently."""
  if place.get("process_id") != 0:
    return
  port = int(place["coordinator_address"].rpartition(":")[2])
  with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a run that has just ended
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
  """Ends the process with a line that says what to check, unless it is left in time."""

  def give_up():
    end(
      f"error: {_who(place)}: not all processes were there after {seconds} s; check that each one "
      "was started, that all have the same JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES, that no "
      "firewall closes the coordinator's port (JAX_COORDINATOR_PORT sets it), and that no proxy "
      "variable is set",
      1,
    )

  timer = threading.Timer(seconds, give_up)
  timer.daemon = True
  timer.start()
  before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would hear it when JAX returns
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


def _first_line(error: Exception) -> str:
  return str(error).strip().split("\n")[0]
