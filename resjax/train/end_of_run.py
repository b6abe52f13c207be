"""What a run prints and draws when it is done."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from rich.console import Console

from resjax.base import Location, locations
from resjax.base.records import METRICS_FILE, read_metrics
from resjax.study import TrainedModel
from resjax.train import run_tables
from resjax.train.evaluate import SPLIT
from resjax.train.result import TrainingResult
from resjax.train.runs import history, restore, workdir
from resjax.train.runs.sample import sample_text
from resjax.train.trainer import Trainer

SAMPLE = "sample.txt"  # the text that the model wrote when it was done


def finish(trainer: Trainer, console: Console) -> TrainingResult:
  """Prints the alignment of a run, a sample, its files and, last, its result; returns it.

  If the run was finished before, its files are left unchanged.
  """
  run, folder = trainer.run, workdir.place(trainer.run.workdir)
  first = jax.process_index() == 0  # the consoles of others are quiet
  records = read_metrics(folder / METRICS_FILE) if first else []
  figures = _show_alignment(trainer, records, console) if first else []
  step = trainer.checkpoints.latest
  assert step is not None  # the last step of a run is saved
  newest = trainer.checkpoints.folder / str(step)
  decoder = trainer.model.bind(trainer.state.params)
  title = restore.Saved(newest, folder).title
  trained = TrainedModel(title, decoder, trainer.tokenizer, run.data.seq_len)
  num_tokens = min(run.train.sample_tokens, run.data.seq_len - len(trained.prefix))
  if num_tokens:
    # The parameters are on the devices of all processes, so that each of them samples.
    [text] = sample_text(trained, [""], num_tokens=num_tokens, temperature=0.8, seed=run.seed)
    console.print("sample (temperature 0.8):", highlight=False)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    if first and (trainer.recorded or not (folder / SAMPLE).exists()):
      locations.write_text(folder / SAMPLE, text)
  console.print(trainer.ledger.table())
  files = [("metrics", folder / METRICS_FILE), *(("plot", file) for file in figures)]
  for kind, file in [*files, ("checkpoint", newest)]:
    console.print(f"{kind:12}{file}", markup=False, soft_wrap=True)
  run_tables.show_result(records, console)  # in the last screen of a terminal
  return TrainingResult(step, folder, newest, figures, trained)


def _show_alignment(
  trainer: Trainer, records: Sequence[Mapping[str, Any]], console: Console
) -> list[Location]:
  """Draws the records of a run, and prints its last alignment; returns the files drawn."""
  # Drawing needs matplotlib, which nothing before the end of a run loads.
  from resjax.study.analysis import plots
  from resjax.study.analysis.report import alignment_table

  run, folder = trainer.run, workdir.place(trainer.run.workdir)
  plot, keep = folder / "plots" / "training.png", not trainer.recorded
  marks = history.marks(workdir.read(folder).parts)
  plots.save(plots.training_figure(records, marks), plot, keep=keep)
  found = alignment_table.alignments(records, run.workdir, SPLIT, run.decoder.sites[-1])
  if not found:
    return [plot]
  alignment_table.show(found[-1], console)
  return [plot, *alignment_table.draw(found, plot.parent, keep=keep)]
