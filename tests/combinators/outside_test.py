"""Combinators of other packages: found by entry point or by class, never imported for a record."""

import runpy
import sys

import pytest
from flax import nnx

from resjax import combinators
from resjax.combinators import outside
from tests.helpers import outside_packages
from tests.helpers.outside_packages import EXAMPLE, install, write

SIZES = {"num_layers": 3, "d_model": 8}


@pytest.fixture
def site(tmp_path, monkeypatch):
  """A folder of installed packages, and a registry that nobody else sees."""
  yield from outside_packages.site(tmp_path, monkeypatch)


@pytest.fixture
def echo(site):
  """The package of docs/examples/outside_package, installed by what its pyproject.toml says."""
  return outside_packages.install_example(site)


def test_an_installed_package_is_listed_before_it_is_imported(echo):
  assert combinators.names()[-1] == "echo" and "resjax_echo" not in sys.modules
  assert combinators.options("echo") == {"decay": 0.5}
  assert combinators.get("echo") is sys.modules["resjax_echo"].Echo
  made = combinators.build("echo", **SIZES, rngs=nnx.Rngs(0), decay=0.25)
  assert made.decay == 0.25 and combinators.names().count("echo") == 1


def test_a_record_imports_no_code(site):
  write(site, "hostile", "raise SystemExit('imported')")
  for find in (combinators.get, combinators.options):
    with pytest.raises(ValueError, match=r"'hostile:Any' names code, which is not imported"):
      find("hostile:Any")
  with pytest.raises(ValueError, match="names code"):
    combinators.build("hostile:Any", **SIZES, rngs=nnx.Rngs(0))
  assert "hostile" not in sys.modules


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
  runpy.run_path(str(EXAMPLE / "test_echo.py"))["test_echo"]()
