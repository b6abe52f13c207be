"""A trained model from the workdir of its run."""

from resjax.data import tokenizer
from resjax.data.tokenizer import Tokenizer
from resjax.sharding import make_layout
from resjax.train import workdir
from resjax.train.checkpoint_reader import newest, restore_params
from resjax.train.config import Run
from resjax.train.state import ModelDef
from resjax.typing import PyTree


def restore_model(run: Run) -> tuple[ModelDef, PyTree, Tokenizer]:
  """Returns the model of a run, its newest parameters, and its tokenizer, also of one that goes on.

  Args:
    run: of `resjax.experiment.load`.

  Raises:
    ValueError: the workdir has no checkpoint, or its newest is damaged.
  """
  folder = workdir.place(run.workdir)
  checkpoint = newest(folder / "checkpoints")
  if checkpoint is None:
    raise ValueError(f"{folder} has no checkpoint yet; train until config.checkpoint.every")
  words = tokenizer.load(folder / workdir.TOKENIZER)
  run = run.with_vocab_size(words.vocab_size)
  model = ModelDef(run.decoder, make_layout(run.mesh, run.sharding))
  return model, restore_params(checkpoint, model.abstract), words
