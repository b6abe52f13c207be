"""Packages with combinators, installed into a folder without pip."""

import shutil
import sys
import tomllib
from pathlib import Path

from resjax.combinators import outside, registry

EXAMPLE = Path(__file__).parents[2] / "docs/examples/outside_package"


def install(folder, module, **entry_points):
  """Makes what pip leaves of a package in a folder: its module, and the metadata beside it.

  Args:
    folder: where packages are installed.
    module: the file of the package.
    **entry_points: the classes that it declares, `module:Class` by name.
  """
  info = folder / f"{module.stem}-0.1.0.dist-info"
  info.mkdir(parents=True)
  info.joinpath("METADATA").write_text(
    f"Metadata-Version: 2.1\nName: {module.stem}\nVersion: 0.1.0"
  )
  points = "".join(f"{name} = {value}\n" for name, value in entry_points.items())
  info.joinpath("entry_points.txt").write_text(f"[resjax.combinators]\n{points}")
  if module.parent != folder:
    shutil.copy(module, folder)


def site(folder, monkeypatch):
  """Yields the folder as one of installed packages, with a registry that nobody else sees."""
  modules = dict(sys.modules)
  monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
  monkeypatch.syspath_prepend(str(folder))
  outside.installed.cache_clear()
  yield folder
  outside.installed.cache_clear()
  for name in set(sys.modules) - set(modules):
    if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
      del sys.modules[name]


def install_example(folder):
  """Installs the package of the documentation by what its pyproject.toml says."""
  project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
  install(folder, EXAMPLE / "resjax_echo.py", **project["entry-points"]["resjax.combinators"])
  return folder


def write(folder, name, text):
  """Writes a module with the classes to inherit from and a text, and returns its path."""
  path = folder / f"{name}.py"
  path.write_text(f"from resjax.combinators import Combinator, Standard\n{text}")
  return path
