"""Shows a build: progress while it runs, then a table of what there is."""

import time

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from resjax.data.config import DataConfig
from resjax.data.dataset import build
from resjax.data.summary import DatasetSummary

_EVERY = 10.0  # seconds between two lines on something that is no terminal


def build_and_show(config: DataConfig, console: Console | None = None) -> DatasetSummary:
  """Builds `config` as `resjax.data.dataset.build` does, showing progress and summary."""
  console = console or Console()
  if console.is_terminal:
    with _bar(console) as bar:
      summary = build(config, _BarProgress(bar))
  else:
    summary = build(config, _LineProgress(console))
  show(summary, console)
  return summary


def show(summary: DatasetSummary, console: Console) -> None:
  """Prints counts per corpus and split, what was dropped, and where the data lie."""
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
  """One bar per stage."""

  def __init__(self, bar: Progress):
    self._bar = bar
    self._tasks = {}

  def __call__(self, stage: str, done: int, total: int) -> None:
    if stage not in self._tasks:
      self._tasks[stage] = self._bar.add_task(stage)
    self._bar.update(self._tasks[stage], completed=done, total=total or None)


class _LineProgress:
  """A line when a stage starts, and now and then while it lasts."""

  def __init__(self, console: Console):
    self._console = console
    self._stage, self._printed = "", 0.0

  def __call__(self, stage: str, done: int, total: int) -> None:
    now = time.monotonic()
    if stage == self._stage and now - self._printed < _EVERY:
      return
    share = f" {done / total:.0%}" if total and stage == self._stage else ""
    self._console.print(f"{stage}{share}", highlight=False)
    self._stage, self._printed = stage, now
