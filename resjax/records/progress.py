"""The progress of a run: a bar on a terminal, lines of text elsewhere."""

import math
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from rich import progress as rich_progress

from resjax import terminal


class Progress:
  """Shows the steps and metrics of a run; a context manager.

  A terminal shows a bar with the metrics and the time left. Anything else gets lines such as
  `step 100/1000  loss 3.412  bpb 1.920  lr 6.0e-4  tok/s 12.3k`.

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
    console = terminal.console(file=self._stream)
    if enabled and self._stream.isatty() and not console.is_dumb_terminal:
      self._bar = rich_progress.Progress(
        rich_progress.TextColumn("step"),
        rich_progress.MofNCompleteColumn(),
        rich_progress.BarColumn(bar_width=None),
        rich_progress.TextColumn("{task.fields[summary]}", markup=False),
        rich_progress.TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,
      )
      self._task = self._bar.add_task("", total=steps, completed=start, summary="")

  def __enter__(self) -> "Progress":
    if self._bar:
      self._bar.start()
    return self

  def __exit__(self, *exc: object) -> None:
    if self._bar:
      self._bar.stop()

  def update(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
    """Shows how far the run has come.

    Args:
      step: the number of finished steps.
      metrics: numbers by a short label, such as loss, bpb, lr, tok/s; None: only a bar moves.
    """
    if not self._enabled:
      return
    summary = "  ".join(f"{k} {format_number(v)}" for k, v in (metrics or {}).items())
    if self._bar:
      fields: dict[str, Any] = {"summary": summary} if metrics else {}
      self._bar.update(self._task, completed=step, **fields)
    elif metrics:
      self._print(f"step {step}/{self._steps}  {summary}")

  def message(self, text: str) -> None:
    """Prints a text as it is, above the bar where there is one."""
    if self._bar:
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
