"""What a checkpoint says of itself: its run, its step, and the parent of the run."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from etils import epath

from resjax.base import Damaged, manifest, typed_json
from resjax.train.checkpoint.place import absolute

RunId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


@dataclasses.dataclass(frozen=True)
class Identity:
  """The facts in the manifest of a checkpoint, covered by its digest.

  Those of checkpoints that were saved before there were facts are None: not known.

  Attributes:
    run: the random name of the run.
    step: the number of steps that the run had finished.
    config: the digest of the run's config when the checkpoint was saved.
    parent: what the run began with: the `run` and `step` of a checkpoint, or the digest of a
      `huggingface` folder; None: it began with random parameters.
  """

  run: RunId | None = None
  step: Annotated[int, msgspec.Meta(ge=0)] | None = None
  config: str | None = None
  parent: Mapping[str, str | int | None] | None = None

  @property
  def known(self) -> bool:
    """Whether the checkpoint says of which run and step it is."""
    return self.run is not None and self.step is not None

  def __str__(self) -> str:
    return f"checkpoint {self.step} of run {self.run}" if self.known else "a checkpoint"

  def facts(self) -> dict[str, Any]:
    """Returns the facts as they stand in a manifest; none where nothing is known."""
    return dataclasses.asdict(self) if self.known else {}

  def of_step(self, step: int) -> "Identity":
    """Returns the identity of a checkpoint of the same run."""
    return dataclasses.replace(self, step=step)


def of(checkpoint: epath.PathLike) -> Identity:
  """Returns the identity in the manifest of a checkpoint.

  Raises:
    Damaged: its manifest is missing or damaged.
    ValueError: a fact of the manifest is unknown or has another type.
  """
  folder = absolute(checkpoint)
  facts = manifest.read(folder).facts
  return typed_json.parse(json.dumps(facts), Identity, str(folder / manifest.FILE_NAME))


def misplaced(checkpoint: epath.PathLike, run: str | None) -> Identity | None:
  """Returns a checkpoint's identity if it contradicts its folder's name or the run, else None.

  Args:
    checkpoint: the folder of the checkpoint.
    run: the run that it should be of; None: any.
  """
  try:
    found = of(checkpoint)
  except Damaged:  # whoever reads the arrays says so
    return None
  name = absolute(checkpoint).name
  moved = found.known and str(found.step) != name
  foreign = found.known and run is not None and found.run != run
  return found if moved or foreign else None
