"""Counts what somebody has to understand of resjax: rooms, arrows, doors, settings, lines.

  python -m tests.structure            prints a JSON object

A *room* is a package or module directly below resjax, its *door* the `__init__` of a package, and
an *arrow* leads from a room to one that it imports. Rooms lie on *floors*: each above all that it
imports. An *operation* is a package below `resjax.kernels`.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from configs import base, tiny
from resjax.combinators import Standard
from resjax.models import Decoder
from resjax.train import experiment

ROOT = Path(__file__).parents[1]
# Modules for torch, which the library ships and reads as text, and never imports.
TORCH_SOURCES = ROOT / "resjax" / "interop" / "huggingface" / "torch_source"
_LOADED = "import sys; {}; print(sum(name.partition('.')[0] == 'resjax' for name in sys.modules))"
# What users write first: a system for a model of their own, and the decoder.
_IMPORTS = {
  "one system": "from resjax.combinators.systems.standard import Standard",
  "decoder": "from resjax.models.decoder import Decoder",
}


def python_files(*folders: str) -> list[Path]:
  """Returns the files of some folders of the repository, in order, but for `TORCH_SOURCES`."""
  found = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
  return [path for path in found if not path.is_relative_to(TORCH_SOURCES)]


def imported(path: Path) -> set[str]:
  """Returns the absolute names of everything that a file imports, inside functions too."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"{path}: relative import"
      names |= {f"{node.module}.{alias.name}" for alias in node.names}
  return names


def room(path: Path) -> str:
  """Returns the room of a file of resjax."""
  return path.relative_to(ROOT / "resjax").parts[0].removesuffix(".py")


def arrows() -> dict[str, set[str]]:
  """Returns the rooms that each room imports."""
  found: dict[str, set[str]] = {}
  for path in python_files("resjax"):
    below = found.setdefault(room(path), set())
    parts = (name.split(".") for name in imported(path))
    below |= {part[1] for part in parts if part[0] == "resjax" and len(part) > 1}
  return {name: (below & set(found)) - {name} for name, below in found.items()}


def floors(below: Mapping[str, set[str]]) -> int:
  """Returns the number of floors of rooms, whose arrows have no circle."""
  floor: dict[str, int] = {}
  while len(floor) < len(below):
    free = [name for name in below if name not in floor and below[name] <= set(floor)]
    if not free:
      raise ValueError(f"circle among {', '.join(sorted(set(below) - set(floor)))}")
    floor |= {name: 1 + max((floor[other] for other in below[name]), default=0) for name in free}
  return max(floor.values())


def empty_doors() -> list[str]:
  """Returns the packages whose `__init__` has no name for others."""
  doors = (path for path in python_files("resjax") if path.name == "__init__.py")
  return [
    path.parent.relative_to(ROOT).as_posix()
    for path in doors
    if not any(map(_exports, ast.parse(path.read_text(encoding="utf-8")).body))
  ]


def _exports(node: ast.stmt) -> bool:
  return not isinstance(node, ast.Expr)  # a docstring


def crossings() -> list[str]:
  """Returns the imports of a kernel's operation from within another one."""
  folder, found = ROOT / "resjax" / "kernels", []
  operations = {path.parent.name for path in folder.glob("*/__init__.py")}
  for path in python_files("resjax/kernels"):
    own = path.relative_to(folder).parts[0]
    for module in sorted({name.rpartition(".")[0] for name in imported(path)}):
      parts = module.split(".")
      inside = parts[:2] == ["resjax", "kernels"] and len(parts) > 3
      if own in operations and inside and parts[2] in operations - {own}:
        found.append(f"{path.relative_to(ROOT)} imports {module}")
  return found


def _settings(config: Mapping[str, object]) -> Iterator[str]:
  for key, value in config.items():
    if isinstance(value, Mapping):
      yield from (f"{key}.{name}" for name in _settings(value))
    else:
      yield key


def _loaded(statement: str) -> int:
  """Returns how many modules of resjax a fresh Python has after an import."""
  done = subprocess.run(
    [sys.executable, "-c", _LOADED.format(statement)],
    cwd=ROOT,
    env={**os.environ, "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    check=True,
  )
  return int(done.stdout)


def _lines(paths: list[Path]) -> int:
  return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def _wheel() -> list[Path]:
  bench = ROOT / "launch" / "bench"
  files = python_files("resjax", "launch", "configs")
  return [path for path in files if not path.is_relative_to(bench)]


def forward_files() -> list[Path]:
  """Returns the files of resjax of which a function runs in a forward pass of a small decoder.

  It is made and traced with the settings of `configs/tiny.py`, and is given its combinator,
  `standard`, as an object: how a system is found by its name is another way to read.
  """
  config = tiny.get_config()
  decoder = experiment.build(config, jax.devices()[:1]).decoder
  sizes = {"num_layers": decoder.num_layers, "d_model": decoder.d_model, "sites": decoder.sites}

  def forward(tokens: jax.Array) -> jax.Array:
    return Decoder(decoder, Standard(**sizes), rngs=nnx.Rngs(0))(tokens)

  entered = set()
  before = sys.getprofile()
  sys.setprofile(lambda frame, event, _: event == "call" and entered.add(frame.f_code.co_filename))
  try:
    jax.eval_shape(forward, jax.ShapeDtypeStruct((1, 16), jnp.int32))
  finally:
    sys.setprofile(before)
  return [path for path in python_files("resjax") if str(path) in entered]


def figures() -> dict[str, int]:
  """Returns all counts by what they count."""
  below, forward = arrows(), forward_files()
  return {
    "rooms": len(below),
    "floors": floors(below),
    "arrows": sum(map(len, below.values())),
    "empty doors": len(empty_doors()),
    "imports from one operation into another": len(crossings()),
    "settings of a config": sum(1 for _ in _settings(base.get_config().to_dict())),
    "files of resjax": len(python_files("resjax")),
    "lines of resjax": _lines(python_files("resjax")),
    "lines of the wheel": _lines(_wheel()),
    "lines of torch sources": _lines(list(TORCH_SOURCES.rglob("*.py"))),
    "files of a forward pass": len(forward),
    "lines of a forward pass": _lines(forward),
    **{f"modules loaded for the {name}": _loaded(text) for name, text in _IMPORTS.items()},
  }


if __name__ == "__main__":
  print(json.dumps(figures(), indent=2))
