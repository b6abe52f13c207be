"""Finds the checkpoint of a run and restores its model."""

import dataclasses

from resjax import locations
from resjax.checkpoint.reader import newest, parameter_shapes, restore_params
from resjax.data import tokenizer
from resjax.data.tokenizer import Tokenizer
from resjax.locations import Location
from resjax.models.model_def import ModelDef
from resjax.runs import workdir
from resjax.runs.config import Run
from resjax.typing import PyTree


@dataclasses.dataclass(frozen=True)
class Saved:
  """A checkpoint of a run.

  Attributes:
    checkpoint: the folder of the checkpoint.
    workdir: the folder of the run.
  """

  checkpoint: Location
  workdir: Location

  @property
  def step(self) -> int:
    """The number of steps that the run had finished when the checkpoint was saved."""
    return int(self.checkpoint.name)


def find(path: str, knob: str) -> Saved:
  """Returns the checkpoint that a setting names.

  Args:
    path: a workdir, which stands for its newest checkpoint, or a checkpoint in one.
    knob: the name of the setting, for messages.

  Raises:
    ValueError: there is no checkpoint.
  """
  folder = locations.path(path, knob, writable=True)
  folder = folder.absolute() if locations.is_local(folder) else folder
  if (folder / "params").is_dir():
    return Saved(folder, folder.parents[1])
  checkpoint = newest(folder / "checkpoints")
  if checkpoint is None:
    raise ValueError(
      f"{knob}={path!r} has no checkpoint; give the workdir of a trained run, or a checkpoint of "
      "one, WORKDIR/checkpoints/STEP"
    )
  return Saved(checkpoint, folder)


def restore_model(run: Run, saved: Saved) -> tuple[ModelDef, PyTree, Tokenizer]:
  """Returns the model of a run, its parameters and its tokenizer; the run may be going on.

  Args:
    run: what `resjax.experiment.load` returns; the parameters go where its layout puts them.
    saved: what `find` returns.

  Raises:
    ValueError: the checkpoint is damaged, or the sizes of the run are not those of its parameters.
  """
  _check_sizes(run, saved)
  words = tokenizer.load(saved.workdir / workdir.TOKENIZER)
  run = run.with_vocab_size(words.vocab_size)
  model = ModelDef(run.decoder, run.layout)
  return model, restore_params(saved.checkpoint, model.abstract), words


def _check_sizes(run: Run, saved: Saved) -> None:
  """Raises ValueError if the layers or the width of a run are not those of its checkpoint.

  The record of a run may claim any size; a decoder of that size is not even traced.
  """
  shapes = parameter_shapes(saved.checkpoint)
  layers = {shape[0] for path, shape in shapes.items() if path.startswith("layers/") and shape}
  widths = {shape[-1] for path, shape in shapes.items() if path == "embed/embedding" and shape}
  for name, value, found in (
    ("num_layers", run.decoder.num_layers, layers),
    ("d_model", run.decoder.d_model, widths),
  ):
    if found != {value}:
      raise ValueError(
        f"{saved.workdir / workdir.RECORD}: config.model.{name} is {value}, but parameters of "
        f"{saved.checkpoint} have {', '.join(map(str, sorted(found))) or 'none'}; they belong to "
        "different runs"
      )
