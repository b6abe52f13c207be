"""Compiles the programs of a run in a thread, so that signals are noticed meanwhile."""

import re
import threading
from concurrent import futures
from concurrent.futures import Future

import jax
from jax.stages import Compiled, Lowered

from resjax.base import processes
from resjax.base.processes import StopRequest
from resjax.train.program import Program

_POLL = 0.1  # seconds
# What compilers say of options that they do not know, or whose value they cannot read.
_OPTION = re.compile(
  r"INVALID_ARGUMENT: ((?:No such compile option|While setting option|Failed to parse '.*' into).*)"
)


def compile_lowered(lowered: Lowered) -> Compiled:
  """Compiles a step with the options that it was made with.

  Raises:
    ValueError: the compiler has no such option, or not with this value.
  """
  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    refused = _OPTION.search(str(error))
    if refused is None:
      raise
    raise ValueError(
      f"config.train.compiler_options: the compiler says {refused[1].rstrip('.: ')!r}; change the "
      "option, or take it out: with -NAME if it is one of auto"
    ) from None


def compile_steps(
  program: Program, stop: StopRequest, *, alignment: bool
) -> tuple[Compiled, ...] | None:
  """Returns the compiled steps of a run; None if the run is to stop before they are compiled.

  XLA cannot be interrupted: after None it goes on in the background until the process ends. Several
  processes finish compiling before they agree to stop.

  Args:
    program: the programs of the run.
    stop: tells whether the run is to stop.
    alignment: whether the step that measures the alignment is compiled, too.

  Returns:
    The steps of training and evaluation, and that of the alignment if it is asked for.

  Raises:
    ValueError: see `compile_lowered`.
  """
  compiled: Future[tuple[Compiled, ...]] = Future()

  def work() -> None:
    try:
      steps = [program.lower_train_step(), program.lower_eval_step()]
      if alignment:
        steps.append(program.lower_alignment_step())
      compiled.set_result(tuple(map(compile_lowered, steps)))
    except BaseException as error:
      compiled.set_exception(error)

  # Python would wait for the thread of an executor at its end, but not for a daemon.
  threading.Thread(target=work, daemon=True).start()
  while not futures.wait([compiled], _POLL).done:
    if stop.asked and not processes.active():
      return None
  return compiled.result()
