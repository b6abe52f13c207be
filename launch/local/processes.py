"""Runs several processes of one command: their output, their signals, and their end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

_POLL_SECONDS = 0.05


def environments(
  num_processes: int, port: int, devices: int, base: Mapping[str, str]
) -> list[dict[str, str]]:
  """Returns the environment of each process.

  Args:
    num_processes: the number of processes.
    port: the port of the coordinator, which is process 0.
    devices: the number of CPU devices of a process; 0 for as many as `base` says.
    base: the variables that all processes have in common.
  """
  common = {**base, "PYTHONUNBUFFERED": "1", "JAX_COORDINATOR_ADDRESS": f"localhost:{port}"}
  common["JAX_NUM_PROCESSES"] = str(num_processes)
  if devices:
    flag = f"--xla_force_host_platform_device_count={devices}"  # overrides an earlier one
    common["XLA_FLAGS"] = f"{base.get('XLA_FLAGS', '')} {flag}".strip()
  return [common | {"JAX_PROCESS_ID": str(process)} for process in range(num_processes)]


def free_port() -> int:
  """Returns a port that nothing listens on."""
  with socket.socket() as probe:
    probe.bind(("localhost", 0))
    return probe.getsockname()[1]


def run(command: Sequence[str], environments: Sequence[dict[str, str]], grace: float) -> int:
  """Runs a command once per environment; returns the exit code of the first that failed, or 0.

  Each line of output begins with the number of its process. SIGTERM and Ctrl-C are sent on to all
  processes, which then may take the time that they need to save; a second Ctrl-C kills them. When
  one process fails, the others get SIGTERM, and are killed if they still run after `grace` seconds.

  Raises:
    ValueError: the command cannot be started.
  """
  processes: list[subprocess.Popen] = []
  signals: list[int] = []

  def hand_on(number: int, _frame: FrameType | None) -> None:
    signals.append(number)
    for process in processes:
      _kill(process) if signals.count(signal.SIGINT) > 1 else process.send_signal(number)

  before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    processes.extend(_start(command, environments))
    printers = [threading.Thread(target=_print, args=item) for item in enumerate(processes)]
    for printer in printers:
      printer.start()
    code = _wait(processes, grace, signals)
    for process, printer in zip(processes, printers, strict=True):
      _kill(process)  # a child that it left behind would hold its output open
      printer.join()
    return code
  except OSError as error:
    raise ValueError(f"{command[0]}: {error.strerror}") from None
  finally:
    for process in processes:
      _kill(process)
    for number, handler in before.items():
      signal.signal(number, handler)


def _start(
  command: Sequence[str], environments: Sequence[dict[str, str]]
) -> Iterator[subprocess.Popen]:
  for environment in environments:
    yield subprocess.Popen(
      command,
      env=environment,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      errors="replace",
      start_new_session=True,  # Ctrl-C then reaches it only once, from this process
    )


def _print(number: int, process: subprocess.Popen) -> None:
  assert process.stdout is not None
  for line in process.stdout:
    # `print` would write the line break separately, and other processes' lines could come between.
    sys.stdout.write(f"[{number}] {line.removesuffix(chr(10))}\n")
    sys.stdout.flush()


def _wait(processes: Sequence[subprocess.Popen], grace: float, signals: Sequence[int]) -> int:
  """Waits until all have ended, and ends the others if one fails before any signal was sent."""
  code, deadline = 0, float("inf")
  while any(process.poll() is None for process in processes):
    failed = [number for number, process in enumerate(processes) if process.poll()]
    if failed and not code and not signals:
      code = _exit_code(processes[failed[0]].returncode)
      print(f"process {failed[0]} failed with exit code {code}", file=sys.stderr, flush=True)
      for process in processes:
        process.send_signal(signal.SIGTERM)
      deadline = time.monotonic() + grace
    if time.monotonic() > deadline:
      for process in processes:
        _kill(process)
    time.sleep(_POLL_SECONDS)
  codes = [_exit_code(process.returncode) for process in processes]
  return code or next(filter(None, codes), 0)


def _kill(process: subprocess.Popen) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)


def _exit_code(returncode: int) -> int:
  """Returns the exit code that a shell would report: for a signal 128 plus its number."""
  return 128 - returncode if returncode < 0 else returncode
