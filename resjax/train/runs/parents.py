"""The models that a run can start from: checkpoints of other runs, and pretrained models."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx

from resjax.base import Array, Location, PyTree, locations
from resjax.base.sharding import Layout
from resjax.data import ModelFiles, model_files, read_text
from resjax.interop import huggingface
from resjax.models import Decoder, DecoderConfig
from resjax.train.checkpoint.reader import parameter_shapes, restore_params
from resjax.train.runs import restore, workdir
from resjax.train.runs.restore import Saved

Shapes = Mapping[str, tuple[int, ...]]
SETTING = "config.train.init_from"


@dataclasses.dataclass(frozen=True)
class FromRun:
  """A parent that is a checkpoint of another run."""

  saved: Saved

  @property
  def source(self) -> Location:
    """The location of the model; `find` finds the same parent there."""
    return self.saved.checkpoint

  def tokenizer(self) -> str:
    """Returns the content of the tokenizer file of a run that has the tokens of this model.

    Raises:
      ValueError: the model has no tokenizer.
    """
    kept = self.saved.workdir / workdir.TOKENIZER
    if not kept.exists():
      raise ValueError(
        f"{SETTING}: {kept} is missing; give a workdir, or a checkpoint that lies in one"
      )
    return read_text(kept)

  def shapes(self, config: DecoderConfig) -> Shapes:
    """Returns the shape of each parameter by its path, for a decoder that takes them over."""
    return parameter_shapes(self.saved.checkpoint)

  def read(self, wanted: Mapping[str, jax.ShapeDtypeStruct], layout: Layout) -> Mapping[str, Array]:
    """Returns the wanted parameters by path, with the wanted shapes and shardings."""
    restore.announce(self.saved)
    return flat(restore_params(self.saved.checkpoint, nested(wanted)))

  def identity(self, config: DecoderConfig) -> Mapping[str, Any]:
    """Returns the settings of the model, see `workdir.model_identity`."""
    return workdir.read(self.saved.workdir).identity

  def facts(self) -> dict[str, str | int | None]:
    """Returns what tells this parent from others, for the checkpoints of a run that starts here."""
    return {"run": self.saved.identity.run, "step": self.saved.step}


@dataclasses.dataclass(frozen=True)
class FromHuggingFace:
  """A parent that is a pretrained model: a folder, a GGUF file, or a model on the hub.

  Rows of learned positions beyond the length of the run's rows are left out.

  Attributes:
    files: its files.
    ignore: the names of settings of config.json that are not known, and harmless.
  """

  files: ModelFiles
  ignore: tuple[str, ...] = ()

  @property
  def source(self) -> Location:
    """Returns the place of the files, as messages name it."""
    return self.files.place

  def tokenizer(self) -> str:
    """Returns the text of the tokenizer file that a run with this tokenizer has."""
    return huggingface.tokenizer(self.files).record

  def shapes(self, config: DecoderConfig) -> Shapes:
    """Returns the shapes of all parameters by path, with the positions that `config` reaches."""
    theirs = huggingface.read_config(self.files, ignore=self.ignore)
    reached = min(theirs.max_positions, config.max_positions)
    theirs = dataclasses.replace(theirs, max_positions=reached)
    model = nnx.eval_shape(lambda: Decoder(theirs, rngs=nnx.Rngs(0)))
    return {path: leaf.shape for path, leaf in _parameters(model).items()}

  def read(self, wanted: Mapping[str, jax.ShapeDtypeStruct], layout: Layout) -> Mapping[str, Array]:
    """Returns the parameters of these paths, with these shapes and shardings."""
    found = _parameters(huggingface.load(self.files, layout=layout, ignore=self.ignore))
    return {path: _first_rows(found[path], leaf) for path, leaf in wanted.items()}

  def identity(self, config: DecoderConfig) -> Mapping[str, Any]:
    """Returns the settings of the model; the dtype of activations is that of `config`."""
    theirs = huggingface.read_config(self.files, dtype=config.dtype, ignore=self.ignore)
    return workdir.model_identity(theirs)

  def facts(self) -> dict[str, str | int | None]:
    """Returns the digest of all files of the model."""
    digest = hashlib.sha256()
    for path in self.files.paths():
      with locations.open_regular(path) as file:
        content = hashlib.file_digest(file, "sha256").digest()
      digest.update(json.dumps(path.name).encode() + content)
    return {"huggingface": digest.hexdigest()}


Parent = FromRun | FromHuggingFace  # a trained model that a run starts from


def find(path: str, ignore: Sequence[str] = ()) -> Parent:
  """Returns the parent that config.train.init_from names.

  Args:
    path: a workdir, which stands for its newest checkpoint, a checkpoint in one, or a pretrained
      model, see `model_files.find`.
    ignore: what `config.train.hf_ignore` names.

  Raises:
    ValueError: the path is none of them.
  """
  if is_huggingface(path):
    return FromHuggingFace(model_files.find(path), tuple(ignore))
  return FromRun(restore.find(path, SETTING))


def is_huggingface(path: str | os.PathLike) -> bool:
  """Returns whether a path is that of a pretrained model, or its name on the hub.

  A run and its checkpoints are none, whatever files lie in their folders.
  """
  place = locations.path(path, SETTING)
  if not os.fspath(path) or not locations.is_local(place):
    return False
  of_run = (place / workdir.RECORD).is_file() or (place / "params").is_dir()
  return not of_run and model_files.is_one(path)


def flat(tree: PyTree) -> dict[str, PyTree]:
  """Returns the leaves of a nested dict by paths such as layers/mlp/up_proj/kernel."""
  return nnx.traversals.flatten_mapping(tree, sep="/")


def nested(leaves: Mapping[str, PyTree]) -> PyTree:
  """Returns the nested dict that `flat` was given."""
  return nnx.traversals.unflatten_mapping(leaves, sep="/")


def _parameters(model: Decoder) -> dict[str, Any]:
  return flat(nnx.to_pure_dict(nnx.state(model)))


def _first_rows(array: Array, wanted: jax.ShapeDtypeStruct) -> Array:
  if array.shape == wanted.shape:
    return array
  cut = jax.jit(lambda whole: whole[: wanted.shape[0]], out_shardings=wanted.sharding)
  return cut(array)
