"""Combinators of other packages: found by entry point or by class, never imported for a record."""

import json
import runpy
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from flax import nnx

from configs import tiny
from resjax import combinators, experiment
from resjax.combinators import outside, registry
from resjax.sweeps.runs import expand
from tests.helpers import trained

PACKAGE = Path(__file__).parents[2] / "docs/examples/outside_package"
SIZES = {"num_layers": 3, "d_model": 8}


def install(folder, module, **entry_points):
  """Makes what pip leaves of a package in a folder: its module, and the metadata beside it."""
  info = folder / f"{module.stem}-0.1.0.dist-info"
  info.mkdir(parents=True)
  info.joinpath("METADATA").write_text(
    f"Metadata-Version: 2.1\nName: {module.stem}\nVersion: 0.1.0"
  )
  points = "".join(f"{name} = {value}\n" for name, value in entry_points.items())
  info.joinpath("entry_points.txt").write_text(f"[resjax.combinators]\n{points}")
  if module.parent != folder:
    shutil.copy(module, folder)


@pytest.fixture
def site(tmp_path, monkeypatch):
  """A folder of installed packages, and a registry that nobody else sees."""
  modules = dict(sys.modules)
  monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
  monkeypatch.syspath_prepend(str(tmp_path))
  outside.installed.cache_clear()
  yield tmp_path
  outside.installed.cache_clear()
  for name in set(sys.modules) - set(modules):
    if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
      del sys.modules[name]


@pytest.fixture
def echo(site):
  """The package of docs/examples/outside_package, installed by what its pyproject.toml says."""
  project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
  install(site, PACKAGE / "resjax_echo.py", **project["entry-points"]["resjax.combinators"])
  return site


def write(folder, name, text):
  path = folder / f"{name}.py"
  path.write_text(f"from resjax.combinators import Combinator, Standard\n{text}")
  return path


def own(name, **options):
  c = tiny.get_config()
  c.train.batch_size = 8
  c.model.residual.name = name
  with c.model.residual.unlocked():
    c.model.residual.update({outside.section(name): options} if options else {})
  return c


def test_an_installed_package_is_listed_before_it_is_imported(echo):
  assert combinators.names()[-1] == "echo" and "resjax_echo" not in sys.modules
  assert combinators.options("echo") == {"decay": 0.5}
  assert combinators.get("echo") is sys.modules["resjax_echo"].Echo
  made = combinators.build("echo", **SIZES, rngs=nnx.Rngs(0), decay=0.25)
  assert made.decay == 0.25 and combinators.names().count("echo") == 1


@pytest.mark.parametrize("name", ["echo", "resjax_echo:Echo"])
def test_a_run_is_trained_recorded_and_read(echo, name, tmp_path):
  """The record of a run imports nothing; an installed package may be named by it."""
  (tmp_path / "text").mkdir()
  for number in range(20):
    (tmp_path / f"text/{number}.md").write_text(f"depth {number} and width " * 60)
  config = trained.settings(tmp_path, tmp_path / "run", name, steps=2, eval_rows=8)
  trained.run(config)
  record = json.loads((tmp_path / "run/run.json").read_text())
  section = outside.section(name)
  assert record["config"]["model"]["residual"][section] == {"decay": 0.5}
  assert record["identity"][f"config.model.residual.{section}.decay"] == 0.5
  loaded = experiment.load(str(tmp_path / "run"))
  assert loaded.decoder.residual.name == name
  registry._REGISTRY.pop(name)  # as in another process
  if name == "echo":
    assert experiment.load(str(tmp_path / "run")).decoder.residual.options == {"decay": 0.5}
    return
  with pytest.raises(
    ValueError, match=r"run\.json.*'resjax_echo:Echo' names code.*--import=resjax_"
  ):
    experiment.load(str(tmp_path / "run"))
  combinators.load(name)
  assert experiment.load(str(tmp_path / "run")).decoder == loaded.decoder


def test_a_record_imports_no_code(site):
  write(site, "hostile", "raise SystemExit('imported')")
  for find in (combinators.get, combinators.options):
    with pytest.raises(ValueError, match=r"'hostile:Any' names code, which is not imported"):
      find("hostile:Any")
  with pytest.raises(ValueError, match="names code"):
    combinators.build("hostile:Any", **SIZES, rngs=nnx.Rngs(0))
  assert "hostile" not in sys.modules


def test_options_are_typed_and_checked_as_those_inside(echo):
  name = "resjax_echo:Echo"
  assert experiment.build(own(name)).decoder.residual.options == {"decay": 0.5}
  assert experiment.build(own(name, decay=0.1)).decoder.residual.options == {"decay": 0.1}
  for options, message in (
    ({"deca": 0.1}, r"config\.model\.residual\.Echo: 'deca' is not an option.*mean 'decay'"),
    ({"decay": "x"}, r"config\.model\.residual\.Echo: decay='x' must be a finite number"),
    ({"decay": 1.0}, r"config\.model\.residual\.Echo: decay=1.0 is out of range"),
  ):
    with pytest.raises(ValueError, match=message):
      experiment.build(own(name, **options))


def test_arms_of_a_sweep_may_be_from_outside(echo):
  arms = [
    ("inside", {"model.residual.name": "gate"}),
    ("outside", {"model.residual.name": "resjax_echo:Echo", "model.residual.Echo.decay": 0.25}),
    ("broken", {"model.residual.name": "nowhere:Echo"}),
  ]
  inside, outer, broken = expand(tiny.get_config(), arms)
  assert "Echo" not in inside.config.model.residual
  assert outer.config.model.residual.Echo.decay == 0.25
  assert broken.config.model.residual.name == "nowhere:Echo"  # fails when it is built
  with pytest.raises(ValueError, match=r"'outside'.*'model.residual.Echo.deca' is not.*Echo.decay"):
    expand(tiny.get_config(), [("outside", {**arms[1][1], "model.residual.Echo.deca": 1.0})])
  with pytest.raises(ValueError, match="run 'a': 'nowhere:Echo' cannot be imported"):
    expand(tiny.get_config(), [("a", {**arms[2][1], "model.residual.Echo.decay": 1.0})])


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("nowhere:Mine", "there is no module 'nowhere'; install its package, or .* PYTHONPATH"),
    ("mine.sub:Mine", r"'mine\.sub:Mine' cannot be imported: "),
    ("needs:Mine", "'needs:Mine' cannot be imported: ModuleNotFoundError: No module named 'gone'"),
    ("fails:Mine", "'fails:Mine' cannot be imported: ZeroDivisionError: division by zero"),
    ("mine:Min", "module 'mine' has no class 'Min'; did you mean 'Mine'"),
    ("json:dumps", "function dumps .* cannot be registered; allowed: subclasses of Combinator"),
    ("mine:Half", r"Half .* does not define final, init, read, write"),
    ("mine:Bare", r"Bare .* does not take d_model, .*\*\*options"),
    ("mine:Needy", "option 'rate' of Needy .* needs a default"),
    ("mine:gate", "has the name of the combinator 'gate'"),
    ("mine:", "'mine:' names no class; allowed: module:Class"),
    ("../mine:Mine", "names no class"),
  ],
)
def test_what_cannot_be_imported_is_said_in_one_line(site, name, message):
  write(site, "needs", "import gone")
  write(site, "fails", "1 / 0")
  write(
    site,
    "mine",
    "class Mine(Standard): pass\n"
    "class Half(Combinator): pass\n"
    "class gate(Standard): pass\n"
    "class Bare(Standard):\n  def __init__(self, *, num_layers: int): ...\n"
    "class Needy(Standard):\n  def __init__(self, *, rate: float, **o): super().__init__(**o)\n",
  )
  with pytest.raises(ValueError, match=message) as raised:
    combinators.load(name)
  assert "\n" not in str(raised.value)
  with pytest.raises(ValueError, match=r"config\.model\.residual\.name: "):
    experiment.build(own(name))


def test_a_broken_package_stops_no_other(echo):
  install(echo, write(echo, "fails", "1 / 0"), broken="fails:Mine")
  install(echo, write(echo, "twice", "class Echo(Standard): pass"), echo="twice:Echo")
  outside.installed.cache_clear()
  assert {"broken", "echo"} <= set(combinators.names())
  message = "'broken' of the installed package fails 0.1.0: .* ZeroDivisionError: division by zero"
  with pytest.raises(ValueError, match=message):
    combinators.get("broken")
  with pytest.raises(ValueError, match=r"'echo' is declared by resjax_echo 0.1.0 and twice 0.1.0"):
    combinators.get("echo")
  assert combinators.get("gate") is combinators.Gate


def test_annotations_that_are_texts_are_types(site):
  head = "from __future__ import annotations\n"
  body = (
    "class Mine(Standard):\n  def __init__(self, *, rate: float = 1, **o): super().__init__(**o)\n"
  )
  path = write(site, "lazy", body)
  path.write_text(head + path.read_text())
  cls = combinators.load("lazy:Mine")
  assert repr(outside.settings(cls)) == "{'rate': 1.0}"
  with pytest.raises(ValueError, match="rate='x' must be a finite number"):
    combinators.build("lazy:Mine", **SIZES, rngs=nnx.Rngs(0), rate="x")


@pytest.mark.slow
@pytest.mark.filterwarnings("error")  # as packages of others often run their tests
def test_the_package_of_the_example_keeps_the_protocol(echo):
  runpy.run_path(str(PACKAGE / "test_echo.py"))["test_echo"]()
