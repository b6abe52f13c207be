"""Finds the checkpoint of a run and restores its model."""

import dataclasses
import sys
from collections.abc import Callable
from typing import TypeVar

import jax

from resjax.base import Damaged, Location, locations
from resjax.data import tokenizer
from resjax.models import ModelDef
from resjax.study import TrainedModel
from resjax.train.checkpoint import identity
from resjax.train.checkpoint.identity import Identity
from resjax.train.checkpoint.place import absolute
from resjax.train.checkpoint.reader import Replaced, newest, parameter_shapes, restore_params
from resjax.train.runs import workdir
from resjax.train.runs.config import Run

_TRIES = 10  # so many checkpoints may be deleted one after the other

Found = TypeVar("Found")


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
  def identity(self) -> Identity:
    """What the checkpoint says of itself; nothing where its manifest is damaged."""
    try:
      return identity.of(self.checkpoint)
    except Damaged:  # whoever reads the arrays says so
      return Identity()

  @property
  def step(self) -> int | None:
    """The number of steps that the run had finished when the checkpoint was saved, if known."""
    known, name = self.identity.step, self.checkpoint.name
    return int(name) if known is None and name.isdecimal() else known

  @property
  def title(self) -> str:
    """The run and the step in words, for tables, by the checkpoint's own manifest."""
    other = self.misplaced()
    return f"{self.workdir.name}, {other or f'step {self.step}'}"

  def misplaced(self) -> Identity | None:
    """Returns the checkpoint's identity if it contradicts its path, else None."""
    recorded = None
    if (self.workdir / workdir.RECORD).exists():
      recorded = workdir.read(self.workdir).lineage
    return identity.misplaced(self.checkpoint, recorded.run if recorded else None)


def find(path: str, setting: str) -> Saved:
  """Returns the checkpoint that a setting names.

  Args:
    path: a workdir, which stands for its newest checkpoint, or a checkpoint in one.
    setting: the name of the setting, for messages.

  Raises:
    ValueError: there is no checkpoint.
  """
  folder = locations.path(path, setting, writable=True)
  folder = folder.absolute() if locations.is_local(folder) else folder
  if (folder / "params").is_dir():
    return Saved(folder, folder.parents[1])
  checkpoint = newest(folder / "checkpoints")
  if checkpoint is None:
    raise ValueError(
      f"{setting}={path!r} has no checkpoint; give the workdir of a trained run, or a checkpoint "
      "of one, WORKDIR/checkpoints/STEP"
    )
  return Saved(checkpoint, folder)


def read_newest(path: str, setting: str, read: Callable[[Saved], Found]) -> Found:
  """Returns the result of reading the checkpoint that a setting names.

  Where the trainer of a workdir deletes it meanwhile, the next newest one is read.

  Args:
    path, setting: see `find`.
    read: reads a checkpoint.

  Raises:
    Replaced: the checkpoint that the setting names was deleted, or one after the other was.
    ValueError: there is no checkpoint.
  """
  for _ in range(_TRIES):
    saved = find(path, setting)
    try:
      return read(saved)
    except Replaced as error:
      last = error
      if saved.checkpoint == absolute(path):
        break
  raise last


def announce(saved: Saved) -> None:
  """Writes a line to the standard error if a checkpoint is not the one that its path says."""
  other = saved.misplaced()
  if other is not None and jax.process_index() == 0:
    print(f"{saved.checkpoint} is {other}; it was moved or copied there", file=sys.stderr)


def restore_model(run: Run, saved: Saved) -> TrainedModel:
  """Returns the model of a run; the run may be going on.

  Args:
    run: the result of `resjax.train.experiment.load`; its layout places the parameters.
    saved: the result of `find`.

  Raises:
    ValueError: the checkpoint is damaged, or its parameters do not have the sizes of the run.
  """
  _check_sizes(run, saved)
  announce(saved)
  words = tokenizer.load(saved.workdir / workdir.TOKENIZER)
  run = run.with_vocab_size(words.vocab_size)
  model = ModelDef(run.decoder, run.layout)
  decoder = model.bind(restore_params(saved.checkpoint, model.abstract))
  return TrainedModel(saved.title, decoder, words, run.data.seq_len)


def _check_sizes(run: Run, saved: Saved) -> None:
  """Raises ValueError if a checkpoint does not have the layers and width of the run.

  The record of a run may claim any size; a decoder of that size is not even traced.
  """
  shapes, config = parameter_shapes(saved.checkpoint), run.decoder
  stacks = {"mlp": len(config.dense_layers), "moe": len(config.routed_layers)}
  # How many layers there are, if a part has as many rows as it has in the run.
  layers = {
    shape[0] + config.num_layers - stacks.get(path.split("/")[1], config.num_layers)
    for path, shape in shapes.items()
    if path.startswith("layers/") and shape
  }
  widths = {shape[-1] for path, shape in shapes.items() if path == "embed/embedding" and shape}
  for name, value, found in (
    ("num_layers", config.num_layers, layers),
    ("d_model", config.d_model, widths),
  ):
    if found != {value}:
      raise ValueError(
        f"{saved.workdir / workdir.RECORD}: config.model.{name} is {value}, but parameters of "
        f"{saved.checkpoint} have {', '.join(map(str, sorted(found))) or 'none'}; they belong to "
        "different runs"
      )
