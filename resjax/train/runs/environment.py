"""What computes a run: packages, code, devices, and the command that started the process."""

import dataclasses
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax

from resjax.base import redaction

_PACKAGES = (
  "resjax", "jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "grain",
  "tensorflow-datasets", "tokenizers", "numpy",
)  # fmt: skip
# Environment variables that change what the same program computes.
_VARIABLES = (
  "XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "JAX_DEFAULT_MATMUL_PRECISION",
  "JAX_ENABLE_X64",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Environment:
  """What computes the steps of a run. Records of earlier runs do not have all of it.

  Attributes:
    packages: the version of each package; None where it is not installed.
    python: the version of Python.
    git: the commit of the source of resjax, with `-dirty` if files were changed; None outside git.
    devices: the kind of each device.
    command: the words of the command, secrets left out.
    variables: the environment variables that are set and change what a program computes.
  """

  packages: dict[str, str | None] = dataclasses.field(default_factory=dict)
  python: str | None = None
  git: str | None = None
  devices: list[str] = dataclasses.field(default_factory=list)
  command: list[str] = dataclasses.field(default_factory=list)
  variables: dict[str, str] = dataclasses.field(default_factory=dict)

  @property
  def facts(self) -> dict[str, str | None]:
    """Everything that is known but the command as texts by name, such as jax, git and devices."""
    found = {**self.packages, "git": self.git, **self.variables}
    if self.python is not None:
      found["python"] = self.python
    if self.devices:
      counted = [f"{count} x {kind}" for kind, count in Counter(self.devices).items()]
      found["devices"] = ", ".join(counted)
    return found


def current() -> Environment:
  """Returns the environment of this process."""
  return Environment(
    packages={package: package_version(package) for package in _PACKAGES},
    python=platform.python_version(),
    git=code_version(),
    devices=[device.device_kind for device in jax.devices()],
    command=redaction.words(sys.argv),
    variables={name: redaction.text(os.environ[name]) for name in _VARIABLES if name in os.environ},
  )


def package_version(name: str) -> str | None:
  """Returns the version of an installed package; None if it is not installed."""
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None


def code_version() -> str | None:
  """Returns the commit of this source, with `-dirty` if files were changed; None outside git."""
  source = Path(__file__)

  def git(*words: str) -> str:
    command = ["git", *words]
    found = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=False)
    return found.stdout.strip()

  try:
    if not git("ls-files", "--", source.name):  # an environment may be in the folder of a project
      return None
    return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or None
  except OSError:
    return None
