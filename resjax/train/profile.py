"""Traces a few steps for xprof, and records the arrays in device memory at the last of them."""

import contextlib
import re
from collections.abc import Callable, Iterator

import jax

from resjax.base import Location, PyTree, locations

ANNOTATION = "train"


def parse_steps(text: str, steps: int) -> range:
  """Returns the steps that --profile_steps names, FIRST:LAST, both included; none if it is empty.

  Args:
    text: the value of the flag, such as 10:13.
    steps: the number of steps of the run.

  Raises:
    ValueError: the text is no such range, or the range is no part of the run.
  """
  if not text:
    return range(0)
  found = re.fullmatch(r"(\d+):(\d+)", text)
  if not found:
    raise ValueError(f"--profile_steps={text!r} must be FIRST:LAST, such as 10:13")
  first, last = map(int, found.groups())
  if not 1 <= first <= last:
    raise ValueError(f"--profile_steps={text} must have 1 <= FIRST <= LAST")
  if last > steps:
    raise ValueError(f"--profile_steps={text} ends after config.train.steps={steps}")
  return range(first, last + 1)


class Profiler:
  """Traces the given steps; a context manager around all steps of a run.

    with Profiler(steps, folder, start=0, log=print) as profiler:
      for step in ...:
        with profiler.step(step):
          state, metrics = train_step(...)
        profiler.end(step, metrics)

  Args:
    steps: what `parse_steps` returns.
    folder: the folder of the results, which is made when they are written.
    start: the number of steps done before this process began.
    log: prints a line about the results; None: none is printed.
    process: the number of this process.

  Raises:
    ValueError: the run resumes after the first of the steps.
  """

  def __init__(
    self,
    steps: range,
    folder: Location,
    *,
    start: int,
    log: Callable[[str], None] | None = None,
    process: int = 0,
  ):
    if steps and steps[0] <= start:
      raise ValueError(
        f"--profile_steps={steps[0]}:{steps[-1]} begins before step {start + 1}, the next one of "
        "this run; choose later steps"
      )
    self._steps, self._folder, self._log, self._process = steps, folder, log, process
    self._tracing: contextlib.ExitStack | None = None

  def __enter__(self) -> "Profiler":
    return self

  def __exit__(self, *exc: object) -> None:
    self._stop()

  @contextlib.contextmanager
  def step(self, step: int) -> Iterator[None]:
    """Is around the work of each step, and starts the trace at the first of those to trace."""
    if step not in self._steps:
      yield
      return
    if step == self._steps[0]:
      self._start()
    with jax.profiler.StepTraceAnnotation(ANNOTATION, step_num=step):
      yield

  def end(self, step: int, result: PyTree) -> None:
    """Is called after each step; after the last one to trace, waits for its result and writes."""
    if self._tracing is None or step != self._steps[-1]:
      return
    jax.block_until_ready(result)
    name = f"memory.{self._process}.pprof"
    jax.profiler.save_device_memory_profile(self._local / name)
    self._stop()
    if self._log is not None:
      self._log(
        f"profile of steps {self._steps[0]}..{step}: xprof --logdir={self._folder} (pip install "
        f"xprof); device memory: pprof -http=: {self._folder / name} (go install "
        "github.com/google/pprof@latest)"
      )

  def _start(self) -> None:
    with contextlib.ExitStack() as stack:
      self._local = stack.enter_context(locations.written_locally(self._folder))
      self._local.mkdir(parents=True, exist_ok=True)
      jax.profiler.start_trace(self._local)
      stack.callback(jax.profiler.stop_trace)
      self._tracing = stack.pop_all()

  def _stop(self) -> None:
    tracing, self._tracing = self._tracing, None
    if tracing is not None:
      tracing.close()
