"""Combinators from outside on the command line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from resjax import combinators
from resjax.cli import outside
from resjax.combinators import registry
from tests.helpers import runs

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "docs/examples/outside_package"
NAME = "resjax_echo:Echo"


@pytest.fixture
def parse(monkeypatch):
  """Parses a config with these words on the command line; the package is on Python's path."""
  monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
  monkeypatch.syspath_prepend(str(PACKAGE))

  def parsed(*words):
    monkeypatch.setattr(sys, "argv", ["train", "--config=configs/tiny.py", *words])
    parser = outside.ConfigParser("config")
    return parser.parse(str(ROOT / "configs/tiny.py")).model.residual

  yield parsed
  sys.modules.pop("resjax_echo", None)


@pytest.mark.parametrize(
  "words",
  [
    (f"--config.model.residual.name={NAME}",),
    ("--config.model.residual.name", NAME),
    ("--config.model.residual.name=gate", f"--config.model.residual.name={NAME}"),
  ],
)
def test_the_config_has_the_options_of_the_last_name(parse, words):
  residual = parse(*words)
  assert residual.Echo.to_dict() == {"decay": 0.5} and residual.is_locked
  with pytest.raises(TypeError):
    residual.Echo.decay = "x"


@pytest.mark.parametrize("name", ["block_attn_res", "gate"])
def test_the_config_has_the_options_of_every_system_that_is_named(parse, name):
  residual = parse(
    "--config.model.residual.mhc.num_streams=2", f"--config.model.residual.name={name}"
  )
  assert {"mhc", name} <= {*residual} <= {"name", "mhc", name, "block_attn_res"}
  assert residual.mhc.to_dict() == combinators.options("mhc")
  own = {"layers_per_block": 2} if name == "block_attn_res" else {}  # that of the file
  assert residual[name].to_dict() == combinators.options(name) | own


def test_a_section_of_no_system_is_named(parse):
  with pytest.raises(flags.Error, match=r"residual\.gat is not a setting; did you mean 'gate'\?"):
    parse("--config.model.residual.gat.kappa=2")


def test_an_error_names_the_setting(parse):
  with pytest.raises(flags.Error, match=r"^config\.model\.residual\.name: 'resjax_ech:Echo'"):
    parse("--config.model.residual.name=resjax_ech:Echo")


@pytest.mark.release
def test_an_installed_package_is_trained_and_read(tmp_path):
  """By pip, in processes of their own, by entry point and by class."""
  site, source = tmp_path / "site", tmp_path / "source"
  shutil.copytree(PACKAGE, source)  # pip builds where the source is
  subprocess.run(
    [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, source],
    check=True,
  )  # fmt: skip
  runs.write_text(tmp_path)
  env = runs.environment(PYTHONPATH=f"{site}{os.pathsep}{ROOT}")

  def done(*command):
    command = [sys.executable, "-m", *command]
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

  def trained(name, *more):
    _, _, *words = runs.command(tmp_path, tmp_path / name.replace(":", "-"), *more)
    words = [word.replace("configs/", f"{ROOT}/configs/") for word in words]
    steps = ["--config.train.steps=2", "--config.optim.warmup_steps=1"]
    return done(*words, *steps, f"--config.model.residual.name={name}")

  for name, section in (("echo", "echo"), (NAME, "Echo")):
    result = trained(name, f"--config.model.residual.{section}.decay=0.75")
    assert result.returncode == 0, result.stderr
    assert '"decay": 0.75' in (tmp_path / name.replace(":", "-") / "run.json").read_text()
    wrong = trained(name, f"--config.model.residual.{section}.deca=0.75")
    assert wrong.returncode == 1 and 'Did you mean "decay"' in wrong.stderr
  read = (
    "resjax",
    "generate",
    "--prompt=a",
    "--num_tokens=3",
    "--checkpoint=resjax_echo-Echo",
  )
  refused = done(*read)
  assert refused.returncode == 1 and f"give --import={NAME}" in refused.stderr
  assert done(*read, f"--import={NAME}").returncode == 0
  assert done(*read[:-1], "--checkpoint=echo").returncode == 0
