"""What a run leaves when it is done: curves, trajectory, sample, and where everything lies."""

import jax
from rich.console import Console

from resjax.analysis.plots import training_curves
from resjax.analysis.report import alignment_table
from resjax.records.metrics_log import FILE_NAME, read_metrics
from resjax.train import run_tables, workdir
from resjax.train.alignment import SPLIT
from resjax.train.sample import sample_text
from resjax.train.trainer import Trainer


def finish(trainer: Trainer, console: Console) -> None:
  """Prints how far a run came, what its states decode to, a sample, and where everything lies."""
  run, folder = trainer.run, workdir.place(trainer.run.workdir)
  plot = folder / "plots" / "training.png"
  files = [plot]
  if jax.process_index() == 0:
    records = read_metrics(folder / FILE_NAME)
    training_curves(records, f"{folder}  ({run.decoder.residual.name})", plot)
    run_tables.show_result(records, console)
    found = alignment_table.alignments(records, run.workdir, SPLIT, run.decoder.sites[-1])
    if found:
      alignment_table.show(found[-1], console)
      files += alignment_table.draw(found, plot.parent)
  num_tokens = min(run.train.sample_tokens, run.data.seq_len - 1)  # a row begins with one token
  if num_tokens:
    options = {"num_tokens": num_tokens, "temperature": 0.8, "seed": run.seed}
    params = trainer.state.params  # of all processes, so that each one samples
    text = sample_text(trainer.model, params, trainer.tokenizer, [""], **options)[0]
    console.print("sample (temperature 0.8):")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
  console.print(trainer.ledger.table())
  console.print(f"metrics     {folder / FILE_NAME}", soft_wrap=True)
  for file in files:
    console.print(f"plot        {file}", soft_wrap=True)
  newest = trainer.checkpoints.folder / str(trainer.checkpoints.latest)
  console.print(f"checkpoint  {newest}", soft_wrap=True)
