"""The command that measures depth retrieval, as its users run it."""

import json

import pytest

from resjax.study.analysis.depth_retrieval.task import ceiling
from tests.helpers import forks


@pytest.fixture(scope="module")
def run():
  return forks.command("depth_retrieval")


@pytest.mark.slow
def test_runs_that_are_there_are_not_repeated(run, tmp_path):
  flags = ["--systems=standard", "--task=marked", "--layers=1", f"--out={tmp_path}"]
  code, output = run(*flags, "--seeds=0,1")
  assert code == 0, output
  stored = json.loads((tmp_path / "results.json").read_text())
  assert stored["ceilings"] == {"1": ceiling(32, 2)}
  first, second = stored["cells"]
  assert [first["seed"], second["seed"]] == [0, 1]
  first["accuracy"], second["accuracy"] = 0.25, 0.75
  (tmp_path / "results.json").write_text(json.dumps(stored))
  code, output = run(*flags, "--seeds=0,1,0")
  assert code == 0, output
  # t(0.975, 1) = 12.706; the standard error of two values is half of their distance.
  assert "0.500 ±3.177" in output and f"ceiling of the plain stream {ceiling(32, 2):.4f}" in (
    " ".join(output.split())
  )
  assert json.loads((tmp_path / "results.json").read_text())["cells"] == stored["cells"]
  before = (tmp_path / "layers_1.png").read_bytes()
  assert before.startswith(b"\x89PNG")
  other = [cell | {"system": "rezero"} for cell in stored["cells"]]
  stored["cells"] += other
  (tmp_path / "results.json").write_text(json.dumps(stored))
  code, output = run(*flags, "--seeds=0,1")
  assert code == 0 and "rezero" not in output
  # The plot has the rows of both systems, though one was asked for.
  width, height = (int.from_bytes(before[at : at + 4], "big") for at in (16, 20))
  after = (tmp_path / "layers_1.png").read_bytes()
  assert int.from_bytes(after[16:20], "big") == width
  assert int.from_bytes(after[20:24], "big") > height
  stored["setup"]["steps"] = 3
  (tmp_path / "results.json").write_text(json.dumps(stored))
  code, output = run(*flags)
  assert code == 1 and "setup.steps is 3, here 500; choose another --out" in output


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    ([], "no folder for the results; give one, for example --out=runs/retrieval"),
    (["--out=x", "--systems=gaet"], "'gaet' is not a combinator; did you mean 'gate'?"),
    (["--out=x", "--seeds=-1"], "--seeds=-1 must be a whole number in 0..2147483647"),
    (["--out=x", "--layers="], "--layers is empty; give one or more"),
    (["--out=x", "--layers=2", "--task=fixed:3"], "--task=fixed:3: with 2 layers there are"),
    (["--out=/dev/null/x", "--systems=standard"], "cannot write to /dev/null/x"),
  ],
)
@pytest.mark.slow
def test_mistakes(run, flags, words):
  code, output = run(*flags)
  assert code == 1 and output.startswith("error: ") and output.count("\n") == 1, output
  assert words in output
