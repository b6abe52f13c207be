"""A trained model from the workdir of its run."""

from pathlib import Path

from resjax.data import pipeline, tokenizer
from resjax.data.tokenizer import Tokenizer
from resjax.sharding import Layout, make_mesh
from resjax.train.checkpoint import Checkpoints
from resjax.train.config import Run
from resjax.train.state import ModelDef
from resjax.typing import PyTree


def restore_model(run: Run) -> tuple[ModelDef, PyTree, Tokenizer]:
  """Returns the model of a run, its newest parameters on the run's mesh, and its tokenizer.

  Args:
    run: of `resjax.experiment.load`.

  Raises:
    ValueError: the workdir has no checkpoint.
  """
  folder = Path(run.workdir) / "checkpoints"
  if not folder.is_dir():
    raise ValueError(f"{run.workdir} has no checkpoint yet; train it first")
  dataset = pipeline.build(run.data)
  run = run.with_vocab_size(dataset.vocab_size)
  model = ModelDef(run.decoder, Layout(make_mesh(run.mesh)))
  with Checkpoints(folder, keep_last=run.train.keep_last) as checkpoints:
    if checkpoints.latest is None:
      raise ValueError(f"{run.workdir} has no checkpoint yet; train it first")
    params = checkpoints.restore_params(model.abstract)
  return model, params, tokenizer.load(dataset.tokenizer)
