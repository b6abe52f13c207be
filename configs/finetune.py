"""Trains a pretrained model or that of a run further, also with another combinator.

The argument is a Hugging Face folder, a GGUF file or OWNER/NAME of a model on the hub, or the
workdir of a run or a checkpoint in it.

  resjax train --config=finetune:FOLDER --config.model.residual.name=gate \
    --config.data.corpora.stdlib.source=TEXT

Model and tokenizer come from the folder; with a run, corpora and row length are the run's too.
A folder that resjax exported with code goes on with its own combinator unless another is given.
A combinator that is neutral at init (gate, attn_res, ...) starts with the function of the model,
and `attenuation` cuts the model at once.

Hardware: what the model needs. Time: 1000 steps.
Expect: the first evaluation is that of the pretrained model, or of the cut model.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from ml_collections import ConfigDict, config_dict

from configs import base

# The folder does not decide these: how the model is computed, and what new parameters start from.
OURS = (
  "attention",
  "depth",
  "depth_values",
  "dtype",
  "init_std",
  "remat",
  "residual",
  "scaled_output_init",
  "short_swa",
  "value_gate",
  "value_mixing",
  "value_residual",
)
# Exported folders with code record their whole decoder here, also what others do not have.
EXPORTED = "resjax_config"
RECORDED = ("depth_values", "short_swa", "value_gate", "value_mixing", "value_residual")
LEARNING_RATE = 3e-5
RECORD = "run.json"  # the file in a workdir that describes the run
MOST_BYTES = 64 << 20  # of a JSON file that is read


def get_config(folder: str = "") -> ConfigDict:
  c = base.get_config()
  workdir = _workdir(folder) if folder else None
  if workdir:
    _like_run(c, workdir / RECORD)
  else:
    _like_folder(c, folder)
  c.workdir = f"runs/finetune_{_name(folder, workdir)}" if folder else "runs/finetune"
  c.train.init_from = folder
  c.optim.update(learning_rate=LEARNING_RATE, warmup_steps=100)
  return c


def _workdir(folder: str) -> Path | None:
  """Returns the workdir that a folder is or is in, None if it is a pretrained model."""
  from resjax.data import model_files  # A config without an argument is data alone.

  place = Path(folder).absolute()
  if (place / RECORD).is_file():
    return place
  workdir = place.parent.parent  # the folder is WORKDIR/checkpoints/STEP
  if model_files.is_one(folder):
    return None
  if not (workdir / RECORD).is_file():
    raise ValueError(
      f"{folder} is no Hugging Face folder (it has no config.json), no workdir of a run (no "
      f"{RECORD}), no checkpoint in one, no GGUF file and no OWNER/NAME of the hub; give one of "
      "them as in --config=finetune:runs/tiny"
    )
  return workdir


def _name(folder: str, workdir: Path | None) -> str:
  from resjax.data import model_files

  return workdir.name if workdir else model_files.title(folder)


def _like_folder(c: ConfigDict, folder: str) -> None:
  """Leaves the settings open that resjax.train.experiment reads from the folder's config.json."""
  _open(c.model, [key for key in c.model if key not in OURS])
  c.data.tokenizer.update(name="pretrained", folder=folder)
  _open(c.data.tokenizer, ["vocab_size"])
  if folder:
    _like_export(c.model, folder)


def _like_export(model: ConfigDict, folder: str) -> None:
  """Takes the residual path, and what only exported folders have, where a folder is one."""
  where, settings = read_settings(folder)
  decoder = settings.get(EXPORTED)
  if decoder is None:
    return
  with _fits(where):
    name, options = (decoder["residual"][key] for key in ("name", "options"))
    _copy(model, {key: decoder[key] for key in RECORDED if key in decoder})
    _copy(model.residual, {"name": name, name: options})


def _open(section: ConfigDict, keys: list[str]) -> None:
  for key in keys:
    if isinstance(section[key], ConfigDict):
      _open(section[key], list(section[key]))
    else:
      kind = type(section[key])
      del section[key]
      section[key] = config_dict.placeholder(kind)


def read_settings(folder: str) -> tuple[str, dict]:
  """Returns what the config.json of a pretrained model is called in messages, and its content."""
  from resjax.data import model_files

  files = model_files.find(folder)
  return files.where(model_files.CONFIG), files.json(model_files.CONFIG, dict)


def read_json(path: Path) -> dict:
  """Returns the object in a JSON file; errors are one line, as in resjax/base/typed_json.py."""
  if not path.is_file() or path.stat().st_size > MOST_BYTES:
    raise ValueError(f"{path} is no file of at most {MOST_BYTES:,} bytes")
  try:
    values = json.loads(path.read_text(encoding="utf-8"))
  except RecursionError:
    raise ValueError(f"{path} is nested too deeply") from None
  except ValueError as error:
    raise ValueError(f"{path} holds no JSON: {error}") from None
  if not isinstance(values, dict):
    raise ValueError(f"{path}: the value is a {type(values).__name__}: an object is allowed")
  return values


def train_like_run(c: ConfigDict, folder: str) -> None:
  """Takes the optimizer and the rows per step of the run that a folder is, or is in."""
  workdir = _workdir(folder)
  if workdir is None:
    raise ValueError(f"{folder} is a pretrained model; give the workdir of a run")
  theirs = _sections(workdir / RECORD, ("optim", "train"))
  with _fits(workdir / RECORD):
    _copy(c.optim, theirs["optim"])
    c.train.batch_size = theirs["train"]["batch_size"]


def _like_run(c: ConfigDict, record: Path) -> None:
  """Takes model and data of a run, without its combinator."""
  theirs = _sections(record, ("model", "data"))
  with _fits(record):
    _copy(c.model, {key: value for key, value in theirs["model"].items() if key != "residual"})
    c.data = ConfigDict(theirs["data"])


def _sections(record: Path, names: Iterable[str]) -> dict:
  """Returns the config in the record of a run, which has these sections."""
  theirs = read_json(record).get("config")
  theirs = theirs if isinstance(theirs, dict) else {}
  for name in names:
    if not isinstance(theirs.get(name), dict):
      raise ValueError(f"{record}: config.{name} is missing, or no object")
  return theirs


@contextlib.contextmanager
def _fits(record: object) -> Iterator[None]:
  """Names the record where a setting is unknown here or has another type."""
  try:
    yield
  except (TypeError, ValueError, KeyError, AttributeError) as error:
    reason = " ".join(str(error).split())
    raise ValueError(f"{record} does not fit the settings of configs/base.py: {reason}") from None


def _copy(section: ConfigDict, values: dict) -> None:
  for key, value in values.items():
    if isinstance(value, dict):
      _copy(section[key], value)
    else:
      section[key] = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
