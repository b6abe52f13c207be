"""Imports point down the layout, go through doors, and stay away from other frameworks."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.structure import TORCH_SOURCES, imported, python_files, room

ROOT = Path(__file__).parents[1]
FORBIDDEN = {"tensorflow", "torch", "transformers", "tokamax", "sklearn", "statsmodels"}

# Times published kernels beside those of resjax; imports nothing of theirs before it runs them.
# Benchmarks whose other side is torch.
_TORCH_ARMS = "kernels/torch_arms.py", "prefill.py", "exported.py"
TORCH_ARMS = {ROOT / "launch/bench" / name for name in _TORCH_ARMS}

# Rooms that need the package of an extra: the extra `eval` brings lm-evaluation-harness.
NEED_EXTRAS = {"resjax.interop.lm_eval": "lm_eval"}
ABSENT = tuple(room for room, package in NEED_EXTRAS.items() if find_spec(package) is None)

# Room of resjax -> the rooms that it may import.
ALLOWED = {
  "base": set(),
  "kernels": {"base"},
  "data": {"base"},
  "nn": {"base", "kernels"},
  "combinators": {"base", "kernels"},
  "models": {"base", "kernels", "nn", "combinators"},
  "testing": {"base", "combinators", "models"},
  "study": {"base", "nn", "combinators", "models", "data"},
  "interop": {"base", "kernels", "nn", "combinators", "models", "data", "study"},
}
_LIBRARY = set(ALLOWED)
ALLOWED["train"] = _LIBRARY
ALLOWED["aot"] = _LIBRARY | {"train"}
ALLOWED["cli"] = _LIBRARY | {"train"}
ALLOWED["__init__"] = {"base", "cli"}
ALLOWED["__main__"] = {"base", "cli"}


def test_imports_point_down():
  wrong = []
  for path in python_files("resjax"):
    for name in imported(path):
      parts = name.split(".")
      if parts[0] == "resjax" and parts[1] not in ALLOWED[room(path)] | {room(path)}:
        wrong.append(f"{path.relative_to(ROOT)} imports {name}")
  assert not wrong


def entered(node, own):
  """The packages of other rooms that an import enters, with what it takes there."""
  module = getattr(node, "module", None) or ""
  if module.startswith("resjax.") and module.split(".")[1] not in (own, "__main__"):
    yield from ((module, alias.name) for alias in node.names)


def code_of_users():
  """The code of docs and notebooks: files, and blocks of pages."""
  for path in sorted((ROOT / "docs").rglob("*.py")):
    yield path, path.read_text()
  for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
    if path.name != "new_combinator.md":  # what is added inside
      for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S):
        yield path, block
  for path in sorted((ROOT / "docs").rglob("*.ipynb")):
    for cell in json.loads(path.read_text())["cells"]:
      if cell["cell_type"] == "code":
        yield path, "".join(line for line in cell["source"] if line[0] not in "!%")


def test_rooms_are_entered_through_their_doors():
  """A package is a door, and exports what others may use; a module is its room's alone."""
  sources = [(path, path.read_text()) for path in python_files("resjax", "launch", "configs")]
  wrong, doors = [], {}
  for path, text in [*sources, *code_of_users()]:
    inside = path.is_relative_to(ROOT / "resjax")
    for node in ast.walk(ast.parse(text)):
      for module, name in entered(node, room(path) if inside else None):
        folder = ROOT.joinpath(*module.split("."))
        if folder.is_dir() and module not in doors and not module.startswith(ABSENT):
          doors[module] = importlib.import_module(module).__all__
        if name not in doors.get(module, ()) and not module.startswith(ABSENT):
          wrong.append(f"{path.relative_to(ROOT)}: from {module} import {name}")
  assert not wrong, "\n".join(wrong)


DOORS = [
  ".".join(path.parent.relative_to(ROOT).parts)
  for path in python_files("resjax")
  if path.name == "__init__.py"
]


@pytest.mark.parametrize("name", [door for door in DOORS if not door.startswith(ABSENT)])
def test_a_door_has_what_it_exports_and_an_example_of_it(name):
  door = importlib.import_module(name)
  exported = {export for export in door.__all__ if not f"{name}.{export}".startswith(ABSENT)}
  # Commands clash in one process, since each has its flags there; those modules are looked for.
  found = {export for export in exported if find_spec(f"{name}.{export}") or hasattr(door, export)}
  assert exported == found and exported
  imports = re.findall(r"^ *(from (resjax[.\w]*) import .+)$", door.__doc__, re.M)
  assert any(f"{name}.".startswith(f"{module}.") for _, module in imports)
  for statement, _ in imports:
    exec(statement, {})


def test_the_allowed_imports_have_no_cycle():
  order = []
  while len(order) < len(ALLOWED):
    free = [p for p in ALLOWED if p not in order and ALLOWED[p] <= set(order)]
    assert free, f"cycle among {set(ALLOWED) - set(order)}"
    order += free


def test_the_library_imports_no_commands_configs_or_tests():
  for path in python_files("resjax"):
    assert not {name.split(".")[0] for name in imported(path)} & {"launch", "configs", "tests"}, (
      path
    )


def test_other_frameworks_are_never_imported():
  files = python_files("resjax", "configs", "launch")
  assert len(files) > 40
  for path in files:
    allowed = {"torch", "transformers"} if path in TORCH_ARMS else set()
    assert not {name.split(".")[0] for name in imported(path)} & (FORBIDDEN - allowed), path


def test_torch_sources_import_torch_and_each_other():
  """They are data of the wheel, which `loaded` below does not find among the modules of resjax."""
  paths = sorted(TORCH_SOURCES.rglob("*.py"))
  assert len(paths) > 40 and not list(TORCH_SOURCES.rglob("__init__.py"))
  for path in paths:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if isinstance(node, ast.ImportFrom) and node.level:
        beside = path.parents[node.level - 1].joinpath(*node.module.split(".")).with_suffix(".py")
        tree = ast.parse(beside.read_text(encoding="utf-8"))
        defined = {getattr(found, "name", None) for found in tree.body}
        defined |= {found.id for found in ast.walk(tree) if isinstance(found, ast.Name)}
        assert {alias.name for alias in node.names} <= defined, path
        assert beside.is_relative_to(TORCH_SOURCES)
      elif isinstance(node, ast.Import | ast.ImportFrom):
        modules = [getattr(node, "module", None) or alias.name for alias in node.names]
        roots = {name.partition(".")[0] for name in modules}
        assert roots <= {"torch", "transformers", *sys.stdlib_module_names}, path


def test_configs_are_data():
  """Of the library, some functions read the names and options of residual systems when called."""
  for path in python_files("configs"):
    roots = {name.split(".")[0] for name in imported(path)}
    assert not roots & {"jax", "jaxlib", "flax", "numpy", "launch"}, path
    assert "\nfrom resjax" not in path.read_text() and "\nimport resjax" not in path.read_text()


EVERYTHING = f"""
import importlib, json, pkgutil, sys
import resjax
alone = sorted(sys.modules)
from absl import flags
for module in pkgutil.walk_packages(resjax.__path__, "resjax."):
  if not module.name.startswith({ABSENT}):
    before = set(flags.FLAGS)
    importlib.import_module(module.name)
    if module.name.startswith("resjax.cli.commands."):  # one of them has its flags in a process
      flags.FLAGS.remove_flag_values(set(flags.FLAGS) - before)
print(json.dumps([alone, sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
  """What is in sys.modules where the other frameworks could be imported (empty packages)."""
  packages = tmp_path_factory.mktemp("packages")
  for name in FORBIDDEN:
    (packages / name).mkdir()
    (packages / name / "__init__.py").touch()
  command = [sys.executable, "-c", EVERYTHING]
  env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT}{os.pathsep}{packages}"}
  done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout)


def test_import_resjax_is_alone(loaded):
  assert not set(loaded[0]) & {*FORBIDDEN, "jax", "matplotlib", "numpy"}


def test_every_module_imports_and_brings_no_other_framework(loaded):
  modules = set(loaded[1])
  for path in python_files("resjax"):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    assert name in modules or name.startswith(ABSENT)
  assert not modules & FORBIDDEN
  assert not [name for name in modules if TORCH_SOURCES.name in name]


def modules_of(statement):
  """The modules that some imports load in a process of their own."""
  code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
  env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
  command = [sys.executable, "-c", code]
  done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)
  assert done.returncode == 0, done.stderr[-3000:]
  return set(json.loads(done.stdout))


def test_importing_combinators_loads_little_besides_flax():
  # How long an import takes is what it loads; a limit in seconds would tell machines apart.
  theirs = modules_of("from flax import nnx")
  modules = modules_of("import resjax; from resjax import combinators") - theirs
  own = {name for name in modules if name.partition(".")[0] == "resjax"}
  assert len(modules - own) <= 5, modules - own
  assert len(own) <= 73
  pallas = "jax.experimental.pallas", "jax.experimental.mosaic"
  assert not [name for name in modules if name.startswith(pallas)]
  assert not [name for name in modules if name.startswith("resjax.kernels.") and ".mosaic_" in name]


def test_a_trainer_loads_nothing_for_other_chips_or_for_figures():
  modules = modules_of("import resjax; from resjax import train; train.train")
  assert "resjax.train.loop" in modules
  unasked = "jax.experimental.pallas", "matplotlib"
  assert not [name for name in modules if name.startswith(unasked)]


WITHOUT = """
import sys

class Absent:
  def find_spec(self, name, path=None, target=None):
    if (package := name.partition(".")[0]) in {absent}:
      raise ModuleNotFoundError(package, name=name)

sys.meta_path.insert(0, Absent())
"""

COLLECT = f"""{WITHOUT}
import pytest
sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *{{paths}}]))
"""

SAID = f"""{WITHOUT}
import importlib
import resjax
for name in {{names}}:
  try:
    importlib.import_module(name)
  except ImportError as error:
    print(error)
try:
  resjax.Experiment
except ImportError as error:
  print(error)
from resjax import combinators
combinators.get("gate")
"""


def test_a_module_that_needs_an_extra_names_it():
  """In an environment as after `pip install resjax`."""
  wanted = {
    "resjax.interop.huggingface": ("msgspec", "train"),
    "resjax.interop.lm_eval": ("lm_eval", "eval"),
    "resjax.data.array_records": ("grain", "train"),
    "resjax.study.config_tree": ("ml_collections", "train"),
    "resjax.study.analysis.plots": ("matplotlib", "train"),
    "resjax.cli.actions.experiment": ("ml_collections", "train"),
  }
  absent = {package for package, _ in wanted.values()} | {"tokenizers", "safetensors", "pyarrow"}
  code = SAID.format(absent=absent, names=[*wanted][:-1])
  env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
  done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-3000:]
  assert done.stdout.splitlines() == [
    f"{name} needs {package}, which is not installed; pip install 'resjax[{extra}]'"
    for name, (package, extra) in wanted.items()
  ]


@pytest.mark.slow
def test_tests_of_the_base_install_need_no_more():
  """Those of `make test-floor`, whose environment has no package of the trainer."""
  makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
  paths = re.search(r"^FLOOR_TESTS = (.*)", makefile, re.MULTILINE)[1].split()
  absent = {"grain", "matplotlib", "msgspec", "pyarrow", "safetensors", "tokenizers"}
  code = COLLECT.format(absent=absent, paths=paths)
  env = {**os.environ, "JAX_PLATFORMS": "cpu"}
  command = [sys.executable, "-c", code]
  done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stdout[-3000:]
  assert all(path in done.stdout for path in paths)


def test_the_training_command_loads_no_trainer_before_it_has_a_config():
  heavy = {"flax", "grain", "matplotlib", "orbax", "resjax.train", "tensorflow_datasets"}
  assert not heavy & modules_of("import resjax.cli.commands.train")


def test_training_loads_nothing_that_draws():
  modules = modules_of("import resjax.cli.commands.train; from resjax import Experiment")
  assert not {"matplotlib", "tensorflow_datasets", "jax.experimental.mosaic.gpu"} & modules
