"""Mistakes on the command line of runs that train together: one line each."""

import pytest

from tests.helpers import forks

CONFIG = "--config=configs/tiny.py"
OTHER = "--run=workdir=unused seed=1"


@pytest.fixture(scope="module")
def forked():
  return forks.command("train_together")


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    ([], 'give --run="workdir=FOLDER seed=NUMBER" for each of two or more runs'),
    (["--run=optim.b1=0.5", OTHER], "'optim.b1=0.5' is not KEY=VALUE of workdir, seed, init_seed"),
    (["--run=seed=x", OTHER], "--run='seed=x': 'seed=x' has no number"),
    (["--run=seed='1", OTHER], "No closing quotation"),
    (["--run=seed=-4", OTHER], "config.seed=-4 must be in 0..4294967295"),
    (["--run=seed=1", "--run=seed=2"], "two runs have config.workdir='runs/tiny'"),
  ],
)
def test_mistakes(forked, flags, words):
  code, output = forked(CONFIG, *flags)
  assert code == 1 and output.startswith("error: ") and words in output, output
  assert output.count("\n") == 1
