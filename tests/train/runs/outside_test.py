"""Combinators of other packages in configs, runs and sweeps."""

import io
import json

import pytest
from rich.console import Console

from configs import tiny
from resjax import combinators
from resjax.combinators import outside, registry
from resjax.study.sweeps.runs import expand
from resjax.train import experiment
from resjax.train.dry_run import dry_run
from tests.helpers import outside_packages, trained
from tests.helpers.runs import write_text


@pytest.fixture
def echo(tmp_path, monkeypatch):
  """The package of the documentation, installed into a folder."""
  for site in outside_packages.site(tmp_path, monkeypatch):
    yield outside_packages.install_example(site)


def own(name, **options):
  c = tiny.get_config()
  c.train.batch_size = 8
  c.model.residual.name = name
  with c.model.residual.unlocked():
    c.model.residual.update({outside.section(name): options} if options else {})
  return c


def trained_and_forgotten(name, folder):
  """Trains a run, reads it, and forgets the system as another process would not know it."""
  config = trained.settings(write_text(folder), folder / "run", name, steps=2, eval_rows=8)
  trained.run(config)
  record = json.loads((folder / "run/run.json").read_text())
  section = outside.section(name)
  assert record["config"]["model"]["residual"][section] == {"decay": 0.5}
  assert record["identity"][f"config.model.residual.{section}.decay"] == 0.5
  decoder = experiment.load(str(folder / "run")).decoder
  assert decoder.residual.name == name and decoder.residual.options == {"decay": 0.5}
  registry._REGISTRY.pop(name)
  return decoder


@pytest.mark.slow
def test_the_record_of_a_run_may_name_an_installed_package(echo, tmp_path):
  decoder = trained_and_forgotten("echo", tmp_path)
  assert experiment.load(str(tmp_path / "run")).decoder == decoder


@pytest.mark.slow
def test_the_record_of_a_run_imports_no_class(echo, tmp_path):
  name = "resjax_echo:Echo"
  decoder = trained_and_forgotten(name, tmp_path)
  words = r"run\.json.*'resjax_echo:Echo' names code.*--import=resjax_"
  with pytest.raises(ValueError, match=words):
    experiment.load(str(tmp_path / "run"))
  combinators.load(name)
  assert experiment.load(str(tmp_path / "run")).decoder == decoder


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


def test_a_dry_run_shows_the_options(echo):
  out = io.StringIO()
  dry_run(experiment.build(own("resjax_echo:Echo", decay=0.25)), Console(file=out, width=160))
  assert "config.model.residual.Echo.decay = 0.25" in out.getvalue()


@pytest.mark.parametrize("name", ["nowhere:Mine", "json:dumps", "mine:"])
def test_an_error_names_the_setting(name):
  with pytest.raises(ValueError, match=r"config\.model\.residual\.name: "):
    experiment.build(own(name))


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
