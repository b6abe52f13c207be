"""The folder of a run, and the record of what the run is: `run.json`."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from resjax.train.config import Run

RECORD = "run.json"
_PACKAGES = (
  "resjax", "jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "grain",
  "tensorflow-datasets", "tokenizers", "numpy",
)  # fmt: skip
# How a step is computed, not what it computes: free to change between two parts of a run.
_FREE_MODEL_KEYS = ("attention", "depth", "remat")


def create(path: str) -> Path:
  """Makes the folder and proves that files can be written there.

  Raises:
    ValueError: they cannot.
  """
  folder = Path(path)
  try:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints").mkdir(exist_ok=True)
    for place in (folder, folder / "checkpoints"):
      with tempfile.TemporaryFile(dir=place):
        pass
  except OSError as error:
    raise ValueError(
      f"cannot write to {folder} ({error.strerror or error}); set config.workdir to a folder "
      "that can be written"
    ) from None
  return folder


def record(folder: Path, run: Run, data_fingerprint: str) -> None:
  """Checks that the folder holds no other run, then writes config, identity and environment.

  Raises:
    ValueError: an earlier run there differs in what decides its parameters or data order.
  """
  identity = _identity(run, data_fingerprint)
  path = folder / RECORD
  if path.exists():
    _check_same(folder, read(folder)["identity"], identity)
  content = {"config": run.resolved, "identity": identity, "environment": _environment()}
  partial = path.with_suffix(".partial")
  partial.write_text(json.dumps(content, indent=2) + "\n")
  os.replace(partial, path)


def read(folder: Path) -> Mapping[str, Any]:
  """Returns the record of a run.

  Raises:
    ValueError: the folder holds no run.
  """
  path = folder / RECORD
  if not path.exists():
    raise ValueError(f"{folder} holds no run: {RECORD} is missing; train one there first")
  return json.loads(path.read_text())


def _identity(run: Run, data_fingerprint: str) -> dict[str, Any]:
  model = {k: v for k, v in run.resolved["model"].items() if k not in _FREE_MODEL_KEYS}
  name = model.pop("residual")["name"]
  identity = {f"model.{key}": value for key, value in model.items()}
  identity["model.residual.name"] = name
  for key, value in run.decoder.residual.options.items():
    identity[f"model.residual.{name}.{key}"] = value
  identity["data"] = data_fingerprint
  identity["seed"] = run.seed
  identity["train.batch_size"] = run.train.batch_size
  return json.loads(json.dumps(identity))  # as it will be read back: tuples are lists


def _check_same(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
  changed = [
    f"config.{key} was {old.get(key)!r} and is {new.get(key)!r}"
    for key in sorted({*old, *new})
    if old.get(key) != new.get(key)
  ]
  if changed:
    raise ValueError(
      f"{folder} holds another run: {'; '.join(changed)}; "
      "choose another config.workdir, or delete that folder"
    )


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
