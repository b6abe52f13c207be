"""The folder of a run, and the record of what the run is: `run.json`."""

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from resjax import locations
from resjax.data.summary import DatasetSummary
from resjax.locations import Location
from resjax.models.config import DecoderConfig
from resjax.runs.config import Run

RECORD = "run.json"
TOKENIZER = "tokenizer.json"
_PACKAGES = (
  "resjax", "jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "grain",
  "tensorflow-datasets", "tokenizers", "numpy",
)  # fmt: skip
# How a step is computed, not what it computes: free to change between two parts of a run.
_FREE_MODEL_FIELDS = ("attention", "depth", "remat")


def place(path: str) -> Location:
  """Returns the folder of a run, local or gs://.

  Raises:
    ValueError: it is neither, or what reads gs:// is not installed.
  """
  return locations.path(path, "config.workdir", writable=True)


def create(path: str) -> Location:
  """Makes the folder and proves that files can be written there.

  Raises:
    ValueError: they cannot.
  """
  folder = place(path)
  locations.make_folder(folder, "config.workdir")
  if locations.is_local(folder):
    locations.make_folder(folder / "checkpoints", "config.workdir")
  return folder


@contextlib.contextmanager
def lock(folder: Location) -> Iterator[None]:
  """Keeps other trainers out of the folder; a dead process holds nothing.

  On an object store nothing can hold a lock that a dead process lets go of: there, whoever trained
  before notices at its next checkpoint that another process writes the records, and ends.

  Raises:
    ValueError: another process trains there.
  """
  if not locations.is_local(folder):
    yield
    return
  with open(folder / ".lock", "w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise ValueError(
        f"another process trains in {folder}; wait for it, or choose another config.workdir"
      ) from None
    yield


def check(folder: Location, run: Run, dataset: DatasetSummary) -> None:
  """Checks that the folder holds no other run.

  Raises:
    ValueError: an earlier run there differs in what decides its parameters or data order.
  """
  if not (folder / RECORD).exists():
    return
  old, new = read(folder), identity(run)
  changed = differences(old["identity"], new)
  if old["data_fingerprint"] != dataset.fingerprint and not changed:
    changed = ["files of config.data.corpora have other sizes or times than at its start"]
  if changed:
    raise ValueError(
      f"{folder} holds another run: {'; '.join(changed)}; "
      "choose another config.workdir, or delete that folder"
    )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
  """Returns one line for each setting that two identities do not share."""
  return [
    f"{key} was {old.get(key)!r} and is {new.get(key)!r}"
    for key in sorted({*old, *new})
    if old.get(key) != new.get(key)
  ]


def write(folder: Location, run: Run, dataset: DatasetSummary, costs: Mapping[str, float]) -> None:
  """Writes config, identity, costs and environment, and keeps a copy of the tokenizer."""
  content = {
    "config": run.resolved,
    "identity": identity(run),
    "data_fingerprint": dataset.fingerprint,
    "costs": costs,
    "environment": _environment(),
  }
  locations.write_text(folder / RECORD, json.dumps(content, indent=2) + "\n")
  locations.write_text(folder / TOKENIZER, dataset.tokenizer.read_text())


def read(folder: Location) -> Mapping[str, Any]:
  """Returns the record of a run.

  Raises:
    ValueError: the folder holds no run, or a damaged record.
  """
  path = folder / RECORD
  if not path.exists():
    raise ValueError(f"{folder} holds no run: {RECORD} is missing; train one there first")
  try:
    found = json.loads(path.read_text())
    complete = {"config", "identity", "data_fingerprint", "costs"} <= set(found)
  except (ValueError, TypeError):
    complete = False
  if not complete:
    raise ValueError(f"{path} is damaged; restore it, or delete the folder")
  return found


def identity(run: Run) -> dict[str, Any]:
  """Returns what decides parameters and data order: setting to value, as JSON has it."""
  data = dataclasses.asdict(run.data)
  del data["root"]
  found = model_identity(run.decoder)
  found |= {f"config.data.{key}": value for key, value in data.items()}
  found |= {"config.seed": run.seed, "config.train.batch_size": run.train.batch_size}
  found |= {"config.optim.name": run.optim.name, "config.train.init_from": run.train.init_from}
  return json.loads(json.dumps(found))


def model_identity(decoder: DecoderConfig) -> dict[str, Any]:
  """Returns what decides the function of a decoder, of its data left out, likewise."""
  model = dataclasses.asdict(decoder)
  residual = model.pop("residual")
  model["residual.name"] = residual["name"]
  for key, value in residual["options"].items():
    model[f"residual.{residual['name']}.{key}"] = value
  for key in (*_FREE_MODEL_FIELDS, "vocab_size", "max_positions"):  # the last two are the data's
    del model[key]
  return json.loads(json.dumps({f"config.model.{key}": value for key, value in model.items()}))


def _environment() -> dict[str, Any]:
  versions = {}
  for package in _PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      versions[package] = None
  return {
    "packages": versions,
    "python": platform.python_version(),
    "git": _git_revision(),
    "devices": [device.device_kind for device in jax.devices()],
    "command": sys.argv,
  }


def _git_revision() -> str | None:
  """Returns the commit of this source, `-dirty` if files were changed; None outside git."""
  command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
  try:
    source = Path(__file__).parent
    found = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
  except OSError:
    return None
  return found.stdout.strip() or None
