"""The wheel, built from the source distribution: its commands work in an empty folder."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.helpers import checkouts, runs

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
  """A folder into which the wheel is installed, without what it needs."""
  place = tmp_path_factory.mktemp("wheel")
  checkouts.copy(place / "source", *checkouts.WHEEL)  # a build leaves files beside its sources
  pip = [sys.executable, "-m", "pip", "--quiet"]
  install = [*pip, "install", "--no-deps"]
  backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
  subprocess.run([*install, f"--target={place / 'backend'}", *backend], check=True)
  build = f"from setuptools import build_meta; build_meta.build_sdist({str(place)!r})"
  subprocess.run(
    [sys.executable, "-c", build],
    cwd=place / "source",
    env=runs.environment(PYTHONPATH=place / "backend"),
    stdout=subprocess.DEVNULL,
    check=True,
  )
  (sources,) = place.glob("*.tar.gz")
  subprocess.run([*pip, "wheel", "--no-deps", f"--wheel-dir={place}", str(sources)], check=True)
  (wheel,) = place.glob("*.whl")
  subprocess.run([*install, f"--target={place / 'site'}", str(wheel)], check=True)
  return place / "site"


@pytest.mark.slow
def test_every_file_is_there(site):
  def files(folder):
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in paths if "__pycache__" not in path.parts}

  installed = files(site / "resjax")
  assert files(ROOT / "resjax") <= installed
  for name in ("launch", "configs"):
    paths = {Path(name) / path for path in files(ROOT / name)}
    shipped = {path for path in paths if not path.is_relative_to("launch/bench")}
    assert {path for path in installed if path.is_relative_to(Path("cli/shipped", name))} == {
      Path("cli/shipped") / path for path in shipped
    }


@pytest.mark.slow
def test_commands_run_from_an_empty_folder(site, tmp_path):
  def resjax(*words, code=0):
    done = subprocess.run(
      [sys.executable, str(site / "bin" / "resjax"), *words],
      cwd=tmp_path,
      env=runs.environment(PYTHONPATH=site, COLUMNS=80),
      capture_output=True,
      text=True,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr

  assert "  train " in resjax("--help")
  said = resjax("bench", "kernels", code=1)
  assert said.startswith("error: resjax bench measures a checkout") and said.count("\n") == 1
  said = resjax("aot", "--config=tiny", "--topology=v5e-4", "--passes", code=1)
  assert said.startswith("error: --passes reads the compiled program") and said.count("\n") == 1
  assert " --top_k=" in resjax("completion", "bash")
  runs.write_text(tmp_path)
  command = runs.small_command(tmp_path, tmp_path / "run")
  small = command[command.index("--config=configs/tiny.py") + 1 :]
  steps = ["--config.train.steps=2", "--config.optim.warmup_steps=1"]
  assert "done: 2 steps" in resjax("train", "--config=tiny", *small, *steps)
  assert (tmp_path / "run" / "run.json").exists()
  assert "no better than chance" in resjax("analyze", "--checkpoint=run", "--tokens=256")
  assert resjax("report", "run") == "run/page.html\n" and (tmp_path / "run/page.html").exists()
  # A sweep starts processes of its own.
  sweep = ("sweep", "--config=ablations/compare", "--only=standard", *small, *steps)
  workdir = f"--config.workdir={tmp_path / 'sweep'}"
  resjax(*sweep, workdir)
  assert (tmp_path / "sweep" / "standard" / "run.json").exists()
  printed = resjax(*sweep, workdir, "--print_commands")
  assert "resjax train --config=ablations/compare" in printed
