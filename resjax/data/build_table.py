"""Shows a build of data: its progress while it runs, then a table of the result."""

import time

from rich import box
from rich.console import Console
from rich.progress import (
  BarColumn,
  MofNCompleteColumn,
  Progress,
  TaskID,
  TextColumn,
  TimeElapsedColumn,
)
from rich.table import Table

from resjax.data.config import DataConfig
from resjax.data.dataset import build
from resjax.data.summary import DatasetSummary

_SECONDS_BETWEEN_LINES = 10.0  # Of progress, where the output is not a terminal.


def build_and_show(config: DataConfig, console: Console | None = None) -> DatasetSummary:
  """Builds the data of `config` if needed, and shows the progress and the summary."""
  console = console or Console()
  if console.is_terminal:
    with _bar(console) as bar:
      summary = build(config, _BarProgress(bar))
  else:
    summary = build(config, _LineProgress(console))
  show(summary, console)
  return summary


def show(summary: DatasetSummary, console: Console) -> None:
  """Prints counts per corpus and split, dropped documents, and where the data lie."""
  table = Table(
    title=f"data: rows of {summary.seq_len} tokens, vocabulary {summary.vocab_size:,}",
    box=box.SIMPLE_HEAD,
    pad_edge=False,
    padding=(0, 1, 0, 0),
  )
  table.add_column("corpus")
  table.add_column("split")
  for heading in ("documents", "MB", "tokens", "bytes/token", "rows", "fill"):
    table.add_column(heading, justify="right", no_wrap=True)
  for name, corpus in summary.corpora.items():
    for split, counts in corpus.splits.items():
      table.add_row(
        name,
        split,
        f"{counts.documents:,}",
        f"{counts.bytes / 1e6:,.2f}",
        f"{counts.tokens:,}",
        f"{counts.bytes_per_token:.2f}",
        f"{counts.rows:,}",
        f"{counts.fill:.1%}",
      )
  console.print(table)
  for name, corpus in summary.corpora.items():
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in corpus.dropped.items())
    console.print(f"{name}: dropped {dropped}; rows in {corpus.rows}", soft_wrap=True)
  console.print(f"tokenizer {summary.tokenizer}; summary {summary.path}", soft_wrap=True)


def _bar(console: Console) -> Progress:
  columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
  return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)


class _BarProgress:
  """Shows one progress bar per stage."""

  def __init__(self, bar: Progress):
    self._bar = bar
    self._tasks: dict[str, TaskID] = {}

  def __call__(self, stage: str, done: int, total: int) -> None:
    if stage not in self._tasks:
      self._tasks[stage] = self._bar.add_task(stage)
    self._bar.update(self._tasks[stage], completed=done, total=total or None)


class _LineProgress:
  """Prints a line when a stage starts, and then at most one every few seconds."""

  def __init__(self, console: Console):
    self._console = console
    self._stage, self._printed = "", 0.0

  def __call__(self, stage: str, done: int, total: int) -> None:
    now = time.monotonic()
    if stage == self._stage and now - self._printed < _SECONDS_BETWEEN_LINES:
      return
    share = f" {done / total:.0%}" if total and stage == self._stage else ""
    self._console.print(f"{stage}{share}", highlight=False)
    self._stage, self._printed = stage, now
