"""The train command as its users run it: mistakes are one line and exit code 1."""

import pathlib

import pytest

from tests.helpers import forks
from tests.helpers.runs import command, finish, small_command, start, write_text


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
  return write_text(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def train():
  return forks.command("train")


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (["--config.model.num_layer=3"], ["--config.model.num_layer=3", 'Did you mean "num_layers"']),
    (["--config.model.num_layers=three"], ["--config.model.num_layers=three", "int"]),
    (["--config.model.residual.name=attnres"], ["did you mean 'attn_res'?"]),
    (["--bogus=1"], ["bogus"]),
    (["stray"], ["unexpected argument 'stray'"]),
    (["--config.data.corpora.stdlib.source=nowhere/x"], ["config.data.corpora.stdlib.source"]),
    (["--config.workdir=/dev/null/run"], ["cannot write to /dev/null/run", "config.workdir"]),
    (["--workdir=/dev/null/run"], ["cannot write to /dev/null/run", "config.workdir"]),
  ],
)
def test_mistakes(root, tmp_path, train, flags, words):
  code, output = train(*command(root, tmp_path / "run", *flags)[3:])
  assert code == 1
  assert output.startswith("error: ") and output.count("\n") == 1, output
  for word in words:
    assert word in output


def test_a_config_that_is_not_there(root, tmp_path):
  arguments = command(root, tmp_path)
  arguments[3] = "--config=configs/nope.py"
  process = start(arguments)
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 1
  assert output.startswith(
    "error: --config=configs/nope.py: no such file, and no config that comes with resjax; near it: "
  )
  assert output.count("\n") == 1


@pytest.mark.slow  # tests/train/poison_test.py has the same in one process
def test_divergence_stops_the_run_and_keeps_the_last_good_checkpoint(root, tmp_path):
  finish(small_command(root, tmp_path / "run", train__steps=10, checkpoint__every=5))
  diverging = {"optim__learning_rate": 1e30, "optim__clip_norm": 0, "checkpoint__every": 1}
  process = start(small_command(root, tmp_path / "run", **diverging))
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 1
  last = output.splitlines()[-1]
  assert last.startswith("error: step ") and "config.optim.learning_rate" in last, output
  assert "Traceback" not in output
  saved = sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*"))
  assert f"the checkpoint of step {saved[-1]} is the last one" in last
