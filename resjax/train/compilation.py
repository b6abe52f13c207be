"""Compiles the programs of a run while the main thread listens to signals."""

import threading
from collections.abc import Callable

from resjax import processes
from resjax.processes.signals import StopRequest
from resjax.train.program import Program

_POLL = 0.1  # seconds


def compile_steps(
  program: Program, stop: StopRequest, *, alignment: bool
) -> tuple[Callable, ...] | None:
  """Returns the steps of training and evaluation, compiled, and where it is asked for that of the
  alignment; None if the run is to stop first.

  XLA cannot be interrupted: after None it goes on in the background until the process ends. Several
  processes finish compiling before they agree to stop.
  """
  result = []

  def work():
    try:
      steps = [program.lower_train_step(), program.lower_eval_step()]
      if alignment:
        steps.append(program.lower_alignment_step())
      result.append(tuple(step.compile() for step in steps))
    except BaseException as error:
      result.append(error)

  thread = threading.Thread(target=work, daemon=True)
  thread.start()
  while thread.is_alive():
    thread.join(_POLL)
    if stop.asked and not processes.active():
      return None
  if isinstance(result[0], BaseException):
    raise result[0]
  return result[0]
