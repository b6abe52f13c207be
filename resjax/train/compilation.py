"""Compiles the steps of a run in threads, beside other work; signals are noticed meanwhile."""

import re
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from functools import partial

import jax
from jax.stages import Compiled, Lowered

from resjax.base import processes
from resjax.base.processes import StopRequest
from resjax.train.program import Program
from resjax.train.runs.config import Run

TRAINING, VALIDATION, ALIGNMENT = "training", "validation", "alignment"
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


def begin(run: Run, program: Program) -> "Compilation":
  """Begins to compile what a run needs of its program, or of one that it shares with others."""
  return Compilation(program, alignment=run.train.alignment_every > 0)


class Compilation:
  """The steps of a program, each of which a thread of its own compiles from now on.

  XLA cannot be interrupted: what nobody waits for goes on until the process ends.

  Args:
    program: the programs of the run.
    alignment: whether the step that measures the alignment is compiled, too.

  Attributes:
    program: the programs.
  """

  def __init__(self, program: Program, *, alignment: bool):
    self.program = program
    # Evaluations come first, and run while the others are compiled.
    lowers = {VALIDATION: program.lower_eval_step, TRAINING: program.lower_train_step}
    if alignment:
      lowers[ALIGNMENT] = program.lower_alignment_step
    self._steps: dict[str, Future[Compiled]] = {name: Future() for name in lowers}
    _in_thread(lambda: self._lower_all(lowers))

  def _lower_all(self, lowers: Mapping[str, Callable[[], Lowered]]) -> None:
    """Lowers the steps one after another, as Python runs one thread at a time."""
    for name, lower in lowers.items():
      try:
        _in_thread(partial(_compile, lower(), self._steps[name]))
      except BaseException as error:
        self._steps[name].set_exception(error)

  def wait(self, name: str, stop: StopRequest) -> Compiled | None:
    """Returns a step; None if the run is to stop before it is compiled.

    Several processes finish compiling before they agree to stop.

    Args:
      name: the step; before that of training is returned all others are compiled, too.
      stop: tells whether the run is to stop.

    Raises:
      ValueError: see `compile_lowered`; whichever step it is.
    """
    needed = self._steps.values() if name == TRAINING else (self._steps[name],)
    while True:
      futures.wait(needed, _POLL)
      for step in filter(Future.done, self._steps.values()):
        step.result()
      if all(step.done() for step in needed):
        return self._steps[name].result()
      if stop.asked and not processes.active():
        return None


def _compile(lowered: Lowered, step: Future[Compiled]) -> None:
  try:
    step.set_result(compile_lowered(lowered))
  except BaseException as error:
    step.set_exception(error)


def _in_thread(work: Callable[[], None]) -> None:
  """Runs a function in a daemon: Python would wait for the threads of an executor at its end."""
  threading.Thread(target=work, daemon=True).start()
