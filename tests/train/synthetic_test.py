"""Training on synthetic tasks."""

import numpy as np
import pytest
from rich.console import Console

from configs import synthetic
from resjax.base.records.metrics_log import METRICS_FILE, read_metrics
from resjax.train import experiment
from resjax.train.loop import train


def trained(tmp_path, task, count=100_000, **settings):
  config = synthetic.get_config(task)
  config.data.corpora[task].source += f"&count={count}"
  config.workdir, config.data.root = str(tmp_path / "run"), str(tmp_path / "data")
  config.train.update(settings)
  config.optim.warmup_steps = min(20, config.train.steps // 2)
  with (tmp_path / "output").open("w") as output:
    train(experiment.build(config), Console(file=output))
  return read_metrics(tmp_path / "run" / METRICS_FILE)


@pytest.mark.slow
def test_accuracy_comes_by_level_and_sums_up(tmp_path):
  records = trained(tmp_path, "parity", 2000, steps=2, eval_rows=32, batch_size=16, log_every=1)
  losses = [r["train/loss"] for r in records if "train/loss" in r]
  # log(3) = 1.1, and the logits of a new model differ by about 1.
  assert len(losses) == 2 and all(0.4 < loss < 2.5 for loss in losses)
  last = [r for r in records if "validation/loss" in r][-1]
  by_level = [last[f"validation/accuracy_position_{position:02}"] for position in range(16)]
  # All levels have as many answers.
  np.testing.assert_allclose(np.mean(by_level), last["validation/accuracy"], atol=1e-6)


@pytest.mark.release
def test_two_layers_learn_associative_recall(tmp_path):
  records = trained(tmp_path, "mqar", 15_000, steps=200, eval_every=0)
  assert [r for r in records if "validation/accuracy" in r][-1]["validation/accuracy"] > 0.9


@pytest.mark.release
def test_products_in_s3_are_learned_from_left_to_right(tmp_path):
  records = trained(tmp_path, "s3", 30_000, steps=400, eval_every=0)
  last = [r for r in records if "validation/accuracy" in r][-1]
  first, third, late = (
    last[f"validation/accuracy_position_{position:02}"] for position in (0, 2, 12)
  )
  assert first > 0.99 and third > 0.6 and last["validation/accuracy"] > 0.3 and third > late
