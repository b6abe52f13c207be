"""What the hosts of a slice get: the last commit of a git checkout, a folder, or a wheel."""

import contextlib
import dataclasses
import fnmatch
import subprocess
from pathlib import Path

from launch import launcher_args

# What is left out of a folder: where code is kept, environments, and what runs write by default.
NOT_SENT = (".git", ".venv*", "__pycache__", "./runs", "./data")
_PROJECT = ("setup.py", "pyproject.toml")  # one of them is in a folder that pip installs


@dataclasses.dataclass(frozen=True)
class Code:
  """The code to install on hosts, and the folder in which the command runs there.

  Attributes:
    here: the folder that the launcher runs in. folder: the folder that hosts get unchanged; empty:
    they get the last commit of the checkout that `here` is in, or with a wheel nothing else. wheel:
    the file of the wheel that is installed; empty: the folder or the commit is.
  """

  here: Path
  folder: str = ""
  wheel: str = ""

  @property
  def top(self) -> Path | None:
    """The folder that becomes the working directory on hosts; None: that is an empty one."""
    if self.folder:
      return self.here / self.folder
    if self.wheel:
      return None
    folders = (self.here, *self.here.parents)
    return next((one for one in folders if (one / ".git").exists()), None)

  def check(self) -> None:
    """Raises ValueError unless there is something that can be sent and installed."""
    for flag, value in (("--folder", self.folder), ("--wheel", self.wheel)):
      launcher_args.require_text(value, flag)
    if self.wheel:
      path = self.here / self.wheel
      if not path.is_file() or path.suffix != ".whl" or path.name.count("-") < 4:
        raise ValueError(f"--wheel={self.wheel} is no wheel; make one with `pip wheel --no-deps .`")
    if self.folder and not (self.here / self.folder).is_dir():
      raise ValueError(f"--folder={self.folder} is no folder")
    if self.wheel or (self.top and any((self.top / name).exists() for name in _PROJECT)):
      return
    if self.folder:
      raise ValueError(
        f"--folder={self.folder} has no {' or '.join(_PROJECT)}, by which hosts would install it; "
        "give the wheel that they install too, --wheel=FILE"
      )
    raise ValueError(
      f"hosts get the last commit of a git checkout with a {' or '.join(_PROJECT)}, and "
      f"{self.here} is in none; run this in a clone of resjax or of a package that requires it, or "
      "send a folder or a wheel with --folder=DIR or --wheel=FILE"
    )

  def require_config(self, name: str, shared: str) -> None:
    """Checks that hosts get the config file of a command under the name that it has here.

    Args:
      name: the path of the file; empty: the command has none of its own.
      shared: the folder that all hosts share, if there is one.

    Raises:
      ValueError: they do not.
    """
    if not name or launcher_args.is_under(name, [shared]):
      return
    if self.top is None:
      what = "the wheel alone; give the folder that it is in too, --folder=DIR"
      if not self.wheel:
        return  # nothing is known of what the hosts have
      raise ValueError(f"--config={name}: hosts get {what}")
    at, path = self.top.resolve(), (self.here / name).resolve()
    if not path.is_relative_to(at):
      raise ValueError(
        f"--config={name} is not in {self.top}, which is what hosts get; put it there, and give "
        "its path from there"
      )
    there = str(path.relative_to(at))
    if there != str(Path(name)):
      raise ValueError(
        f"--config={name}: the command runs in {self.top} on hosts; give --config={there}, and run "
        "this there"
      )
    if self.folder and (left_out := _left_out(there)):
      raise ValueError(f"--config={name}: hosts do not get {left_out}; put it elsewhere")
    if not self.folder and not _is_committed(at, there):
      raise ValueError(
        f"--config={name}: hosts get the last commit, and this is not in it; commit it"
      )


def _left_out(name: str) -> str | None:
  """Returns what of `NOT_SENT` keeps a file of a folder from being sent; None: nothing does."""
  parts = name.split("/")
  for pattern in NOT_SENT:
    top = pattern.startswith("./")
    if any(fnmatch.fnmatchcase(part, pattern.removeprefix("./")) for part in parts[: top or None]):
      return pattern
  return None


def _is_committed(top: Path, name: str) -> bool:
  """Returns whether a file is unchanged since the last commit; true where git is missing."""
  with contextlib.suppress(FileNotFoundError):  # which the first step says
    command = ["git", "-C", str(top), "status", "--porcelain", "--ignored", "--", name]
    found = subprocess.run(command, capture_output=True, check=False)
    return not (found.returncode or found.stdout)
  return True
