"""Copies of parts of this checkout."""

import pathlib
import shutil

_ROOT = pathlib.Path(__file__).parents[2]
# What a wheel is built from.
WHEEL = (
  *("resjax", "launch", "configs"),
  *("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"),
)


def copy(folder: pathlib.Path, *names: str) -> None:
  """Copies folders and files of the checkout into a folder, without what Python compiled."""
  folder.mkdir(exist_ok=True)
  for name in names:
    if (_ROOT / name).is_dir():
      ignore = shutil.ignore_patterns("__pycache__")
      shutil.copytree(_ROOT / name, folder / name, ignore=ignore)
    else:
      shutil.copy(_ROOT / name, folder)
