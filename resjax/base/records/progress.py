"""The progress of a run: a bar on a terminal or in a notebook, lines of text elsewhere."""

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich import progress as rich_progress
from rich.table import Column

from resjax.base import terminal
from resjax.base.terminal import NotebookOutput

_LEAST_BAR = 4  # columns


class Progress:
  """Shows the steps and metrics of a run; a context manager.

  A terminal or a notebook shows a bar with the metrics and the time left. Anything else gets lines
  such as `step 100/1000  loss 3.412  bpb 1.920  lr 6.0e-4  tok/s 12.3k`. Metrics for which there is
  no room beside the bar are left out, from the last on; no number is cut.

  Args:
    steps: the number of steps of the whole run.
    start: the number of steps that earlier processes have done.
    stream: where to write; None: standard output.
    enabled: False shows nothing, as in all processes but the first.
  """

  def __init__(
    self, steps: int, *, start: int = 0, stream: TextIO | None = None, enabled: bool = True
  ):
    self._steps = steps
    self._stream = stream or sys.stdout
    self._enabled = enabled
    self._bar: rich_progress.Progress | None = None
    self._cell: NotebookOutput | None = None
    console = terminal.console(file=self._stream)
    self._in_notebook = console.is_jupyter and stream is None
    is_terminal = self._stream.isatty() and not console.is_dumb_terminal
    if enabled and (is_terminal or self._in_notebook):
      self._bar = rich_progress.Progress(
        rich_progress.TextColumn("step"),
        rich_progress.MofNCompleteColumn(table_column=Column(no_wrap=True)),
        rich_progress.BarColumn(bar_width=None),
        rich_progress.TextColumn("{task.fields[summary]}", markup=False),
        rich_progress.TimeRemainingColumn(table_column=Column(no_wrap=True)),
        console=console,
        refresh_per_second=4,
      )
      self._task = self._bar.add_task("", total=steps, completed=start, summary="")

  def __enter__(self) -> "Progress":
    if self._bar and self._in_notebook:
      self._cell = NotebookOutput(self._bar)
    elif self._bar:
      self._bar.start()
    return self

  def __exit__(self, *exc: object) -> None:
    if self._bar and self._cell:
      self._cell.draw(self._bar)
    elif self._bar:
      self._bar.stop()

  def update(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
    """Shows how far the run has come.

    Args:
      step: the number of finished steps.
      metrics: numbers by a short label, such as loss, bpb, lr, tok/s; None: only a bar moves.
    """
    if not self._enabled:
      return
    words = [f"{k} {format_number(v)}" for k, v in (metrics or {}).items()]
    if self._bar:
      fields: dict[str, Any] = {"summary": self._fitting(words)} if metrics else {}
      self._bar.update(self._task, completed=step, **fields)
      if self._cell:
        self._cell.refresh(self._bar)
    elif metrics:
      self._print(f"step {step}/{self._steps}  {'  '.join(words)}")

  @contextlib.contextmanager
  def doing(self, what: str) -> Iterator[None]:
    """Names beside the bar the activity in this context, in which no step is taken."""
    if self._bar is None:
      self.message(what)
      yield
      return
    before = self._bar.tasks[0].fields["summary"]
    self._bar.update(self._task, summary=what, refresh=True)  # the thread that draws may wait
    if self._cell:
      self._cell.draw(self._bar)
    try:
      yield
    finally:
      self._bar.update(self._task, summary=before)

  def _fitting(self, words: Sequence[str]) -> str:
    """Returns as many words as the terminal has room for beside the step, the bar and the time."""
    assert self._bar is not None
    steps, gaps = 2 * len(str(self._steps)) + 1, 4
    room = self._bar.console.width - len("step") - steps - _LEAST_BAR - len("0:00:00") - gaps - 1
    lines = ["  ".join(words[:number]) for number in range(len(words) + 1)]
    return max((line for line in lines if len(line) <= room), key=len, default="")

  def message(self, text: str) -> None:
    """Prints a text literally, above the bar if there is one."""
    if self._bar and not self._cell:
      self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
    elif self._enabled:
      self._print(text)

  def _print(self, text: str) -> None:
    print(text, file=self._stream, flush=True)


def format_number(value: float) -> str:
  """Returns a number in four digits, from 1000 on with k, M, G or T, below 0.01 like 6.0e-4."""
  value = float(value)
  if not math.isfinite(value) or value == 0:
    return f"{value:.4g}"
  if abs(value) < 0.01:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"
  for unit in ("", "k", "M", "G"):
    # From 999.95 on, the number would be rounded to 1000.
    if abs(value) < 999.95:
      return f"{value:.1f}{unit}" if unit else f"{value:#.4g}".removesuffix(".")
    value /= 1000
  return f"{value:.1f}T"
