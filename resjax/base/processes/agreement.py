"""Messages between the processes of a run: they agree on values, and when one ends, all end.

JAX's coordination service, which process 0 hosts, carries the messages. It has no public interface
for them, so this module uses its private parts.
"""

import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import jax
from jax._src import distributed as runtime
from jax.experimental import multihost_utils

_END, _LEFT = "resjax/end", "resjax/left/"
_POLL = 0.5  # seconds
# Process 0 waits for so many seconds before it ends, because the others hear of that through it.
_GRACE = 10.0

# Parts of the messages of collectives and of the coordination service when a process is gone.
_LOST = re.compile(
  r"gloo|nccl|closed by peer|reset by peer|broken pipe|heartbeat|^UNAVAILABLE", re.I
)

_ending = threading.RLock()  # is held by the thread that ends this process
_told = threading.Event()  # is set when nobody is left who has to hear of the end
_joined = threading.Event()  # is set while this process and the others have found each other
_watcher: threading.Thread  # runs `_watch` while `_joined` is set


def joined() -> None:
  """Notes that this process has joined the others, and begins to watch for their ends."""
  _joined.set()
  global _watcher
  _watcher = threading.Thread(target=_watch, daemon=True)
  _watcher.start()


def active() -> bool:
  """Returns whether this process is one of several."""
  return _joined.is_set()


def shutdown() -> None:
  """Waits until all processes have finished, and leaves them."""
  if not active():
    return
  gather("finish", None)
  first("finished", lambda: None)
  _joined.clear()
  _watcher.join()  # Python aborts when it finishes while a thread is inside the client
  jax.distributed.shutdown()


def first(name: str, make: Callable[[], Any]) -> Any:
  """Returns in all processes what `make()` returns in process 0; the others wait for it.

  Args:
    name: the name of the message, which may be used once in a run.
    make: is called in process 0 alone; its result can be written as JSON.
  """
  if not active():
    return make()
  client, key = _client(), f"resjax/first/{name}"
  if jax.process_index() == 0:
    client.key_value_set(key, json.dumps(make()))
  while (found := _read(client, key)) is None:
    time.sleep(_POLL)
  return json.loads(found)


def gather(name: str, value: Any) -> list[Any] | None:
  """Returns the values of all processes in their order, in process 0; None in the others.

  Args:
    name: the name of the message, which may be used once in a run.
    value: the value of this process, which can be written as JSON.
  """
  if not active():
    return [value]
  client, folder = _client(), f"resjax/gather/{name}/"
  client.key_value_set(f"{folder}{jax.process_index()}", json.dumps(value))
  if jax.process_index() != 0:
    return None
  while len(found := client.key_value_dir_get(folder)) < jax.process_count():
    time.sleep(_POLL)
  values = {int(key.rsplit("/", 1)[1]): json.loads(text) for key, text in found}
  return [values[index] for index in range(jax.process_count())]


def listen_for_preemption() -> None:
  """Lets JAX's preemption service handle SIGTERM from now on; see `reached_sync_point`."""
  if runtime.global_state.preemption_sync_manager is None:
    jax.config.update("jax_enable_preemption_service", True)
    runtime.global_state.initialize_preemption_sync_manager()


def reached_sync_point(tick: int) -> bool:
  """Returns whether all processes stop after this tick, because one of them got SIGTERM.

  Args:
    tick: counts 1, 2, 3, ... in every process alike. JAX answers True at one number alone: the one
      after the highest that any process had reached.
  """
  return multihost_utils.reached_preemption_sync_point(tick)


def lost(error: Exception) -> bool:
  """Returns whether an error means that another process is gone."""
  return active() and bool(_LOST.search(str(error)))


def explain(error: Exception) -> str:
  """Returns the message of an error; a plain one where JAX means that another process is gone."""
  return _gone(first_line(error)) if lost(error) else str(error)


def _gone(reason: str) -> str:
  return (
    f"another process died, or the network between them ({reason}); its log says why; the same "
    "command in all processes goes on from the newest checkpoint"
  )


def end_without_coordinator(*_status: object) -> None:
  """Ends this process where JAX finds the coordination service, or another process, gone.

  It takes the place of a callback that would abort, and may be called in any thread.
  """
  _told.set()  # by a service that is gone nobody hears of anything
  end(f"error: {_gone('they no longer hear of each other')}", 1)


def end(message: str, code: int) -> NoReturn:
  """Prints a line, and ends this process and all others with an exit code.

  Python does not shut down in order: it would wait for a compilation in the background, and JAX for
  processes that will not come.
  """
  with _ending:
    with contextlib.suppress(OSError):  # nobody may read it
      print(message, file=sys.stderr)
    _leave(code, message)


def _watch() -> None:
  """Ends this process when another one has ended, for which its main thread may be waiting."""
  own, client = runtime.global_state.process_id, _client()
  while active():
    time.sleep(_POLL)
    notice = json.loads(_read(client, _END) or "null")
    if notice and notice["process"] != own:
      # This process may have a message of its own, which comes first.
      time.sleep(_POLL)
      with _ending:
        who = f"process {notice['process']} on {notice['host']}"
        print(f"process {own} ends with {who}, which says: {notice['message']}", file=sys.stderr)
        _leave(notice["code"])


def _leave(code: int, message: str | None = None) -> NoReturn:
  """Ends this process when the others know, or can no longer be told, why it ends.

  Args:
    code: the exit code.
    message: the message for the others; None: one of them sent it.
  """
  if active():
    # A service that is gone may keep whoever asks it waiting.
    threading.Thread(target=_tell, args=(code, message), daemon=True).start()
    _told.wait(2 * _GRACE)
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError):  # nobody may read it, and it may be closed
      stream.flush()
  os._exit(code)


def _tell(code: int, message: str | None) -> None:
  """Tells the other processes that this one ends; process 0 waits a while until they have left."""
  state, client = runtime.global_state, _client()
  with contextlib.suppress(RuntimeError):  # another process was first, or the service is gone
    if message is not None:
      notice = {"process": state.process_id, "message": message, "code": code}
      notice["host"] = socket.gethostname()
      client.key_value_set(_END, json.dumps(notice))
  with contextlib.suppress(RuntimeError):
    client.key_value_set(f"{_LEFT}{state.process_id}", "", allow_overwrite=True)
    deadline = time.monotonic() + _GRACE
    while state.process_id == 0 and time.monotonic() < deadline:
      if len(client.key_value_dir_get(_LEFT)) == state.num_processes:
        break
      time.sleep(_POLL / 5)
  _told.set()


def _client() -> Any:
  return runtime.global_state.client


def _read(client: Any, key: str) -> str | None:
  try:
    return client.key_value_try_get(key)
  except RuntimeError:  # the key is not there yet; if the service is gone, JAX ends this process
    return None


def first_line(error: Exception) -> str:
  """Returns the first line of an error's message."""
  return str(error).strip().split("\n")[0]
