"""Shows a build of data: its progress while it runs, then a table of the result."""

import time

from rich.console import Console
from rich.progress import (
  BarColumn,
  MofNCompleteColumn,
  Progress,
  TaskID,
  TextColumn,
  TimeElapsedColumn,
)
from rich.table import Column

from resjax.base import terminal
from resjax.data import dropped, storage
from resjax.data.config import DataConfig
from resjax.data.dataset import Check, build
from resjax.data.summary import CorpusSummary, DatasetSummary

_SECONDS_BETWEEN_LINES = 10.0  # Of progress, where the output is not a terminal.


def build_and_show(
  config: DataConfig, console: Console | None = None, check: Check | None = None
) -> DatasetSummary:
  """Builds the data of `config` if needed, see `build`; shows the progress and the summary."""
  console = console or terminal.console()
  if console.is_terminal:
    columns = (
      TextColumn("{task.description}", markup=False),
      BarColumn(),
      MofNCompleteColumn(table_column=Column(no_wrap=True)),
      TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
      summary = build(config, _bar_progress(bar), check)
  else:
    summary = build(config, _line_progress(console), check)
  show(summary, console)
  return summary


def show(summary: DatasetSummary, console: Console) -> None:
  """Prints counts per corpus and split, dropped documents, and where the data lie."""
  title = f"data: rows of {summary.seq_len} tokens, vocabulary {summary.vocab_size:,}"
  table = terminal.Table("corpus", title=title)
  table.numbers("split", justify="left")
  table.numbers("documents", "MB", "tokens", "bytes/token", "rows", "fill")
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
    terminal.say(console, f"{name}: dropped {_dropped(corpus)}; rows in {corpus.rows}")
  places = f"tokenizer {summary.tokenizer}; summary {summary.path}"
  terminal.say(console, places)


def _dropped(corpus: CorpusSummary) -> str:
  """Returns, for each reason, how many documents a corpus left out, with the first names."""
  folder, noted = corpus.text.parents[1], dropped.Dropped()
  for reason, name in dropped.read(folder):
    noted.add(reason, name)
  if any(noted.counts.values()):
    return f"{noted}; all are in {folder / dropped.FILE_NAME}"
  return ", ".join(f"{count:,} {reason}" for reason, count in corpus.dropped.items())


def _bar_progress(bar: Progress) -> storage.Progress:
  """Returns a progress that shows one bar per stage."""
  tasks: dict[str, TaskID] = {}

  def show(stage: str, done: int, total: int) -> None:
    if stage not in tasks:
      tasks[stage] = bar.add_task(stage, total=None)  # rich's own total is 100
    bar.update(tasks[stage], completed=done, total=total or None)

  return show


def _line_progress(console: Console) -> storage.Progress:
  """Returns a progress that prints a line when a stage starts, and then one every few seconds."""
  last, printed = "", 0.0

  def show(stage: str, done: int, total: int) -> None:
    nonlocal last, printed
    now = time.monotonic()
    if stage == last and now - printed < _SECONDS_BETWEEN_LINES:
      return
    share = f" {done / total:.0%}" if total and stage == last else ""
    console.print(f"{stage}{share}", markup=False, highlight=False)
    last, printed = stage, now

  return show
