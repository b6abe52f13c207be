"""Where the commands and configs that come with resjax lie.

They are the top-level packages `launch` and `configs`: in a checkout or an editable install folders
of the repository, in a wheel folders of this package.
"""

import contextlib
import difflib
import filecmp
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


def root() -> Path:
  """Returns the folder that holds `launch` and `configs`: this package's own, or the repository."""
  here = Path(__file__).resolve().parent
  return here if (here / "launch").is_dir() else here.parents[2]


def make_launchers_importable() -> None:
  """Puts `launch` and `configs` before all other modules: each of theirs has one name then."""
  sys.path.insert(0, str(root()))


def make_own_importable() -> None:
  """Puts the current folder behind all: a user's config or combinator may lie there."""
  if not sys.flags.safe_path and not {"", str(Path.cwd())} & set(sys.path):
    sys.path.append(str(Path.cwd()))


def config_names() -> list[str]:
  """Returns the names of the shipped configs, such as `tiny` and `ablations/compare`."""
  folder = root() / "configs"
  files = (path for path in folder.rglob("*.py") if path.name != "__init__.py")
  return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in files)


def config_file(name: str) -> Path:
  """Returns the file of a config.

  Args:
    name: the name of a shipped config, or the path of a file.

  Raises:
    ValueError: there is neither; the nearest names are given.
  """
  if not name:
    raise ValueError("no config; give one, for example tiny")
  if name in config_names():
    return root() / "configs" / f"{name}.py"
  path = Path(name)
  if path.is_file():
    return path
  if path.is_dir():
    raise ValueError(f"{name}: is a folder, not a file")
  wanted = name.removeprefix("configs/").removesuffix(".py")
  nearest = difflib.get_close_matches(wanted, config_names(), n=3) or config_names()
  raise ValueError(
    f"{name}: no such file, and no config that comes with resjax; near it: {', '.join(nearest)}"
  )


@contextlib.contextmanager
def imports_of(config: Path) -> Iterator[None]:
  """Lets a config file import resjax's own `configs`, and modules in its own folder.

  If it lies below a folder `configs`, this is a part of that package, too. A package
  `configs` of another origin that is imported already is restored afterwards.

  Raises:
    ValueError: a module was imported of which that folder has another version.
  """
  shipped = root() / "configs"
  own = next((path for path in config.absolute().parents if path.name == "configs"), shipped)
  theirs = _pop_configs()
  sys.path.insert(0, str(root()))
  sys.path.append(beside := str(config.absolute().parent))
  try:
    importlib.import_module("configs").__path__.append(str(own))
    yield
    for module in _pop_configs().values():
      _check_version(Path(module.__file__ or ""), shipped, own, config)
  finally:
    sys.path.remove(str(root()))
    del sys.path[len(sys.path) - 1 - sys.path[::-1].index(beside)]  # not the one of the user
    _pop_configs()
    sys.modules.update(theirs)


def _pop_configs() -> dict[str, ModuleType]:
  names = [name for name in sys.modules if name.partition(".")[0] == "configs"]
  return {name: sys.modules.pop(name) for name in names}


def _check_version(imported: Path, shipped: Path, own: Path, config: Path) -> None:
  """Raises ValueError if a folder has another version of a shipped config that was imported."""
  if not imported.is_relative_to(shipped) or imported.name == "__init__.py":
    return
  other = own / imported.relative_to(shipped)
  if not other.is_file() or other.samefile(config) or filecmp.cmp(imported, other, shallow=False):
    return
  name = ".".join(imported.relative_to(shipped.parent).with_suffix("").parts)
  raise ValueError(f"{name} is imported from resjax, not from {other}; give that file another name")
