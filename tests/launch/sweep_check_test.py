"""Runs of a sweep that were trained with other settings for some of their steps."""

import pytest

from resjax.cli.commands import sweep_runs
from resjax.train import experiment
from resjax.train.runs import workdir
from tests.study.sweeps import made
from tests.train.experiment_test import dataset


def test_a_run_that_had_another_rate_before_is_refused(tmp_path):
  (run,) = made.runs([], {"standard": {}}, workdir=tmp_path / "sweep")
  folder = workdir.create(run.config.workdir)
  wanted = run.config.to_dict()
  assert sweep_runs.check([run]) == {} and not sweep_runs.begun(run)

  def trained(rate, after):
    values = {**wanted, "optim": {**wanted["optim"], "learning_rate": rate}}
    workdir.write(folder, experiment.build(values), dataset(tmp_path), {}, after=after)

  rate = wanted["optim"]["learning_rate"]
  trained(rate, 0)
  assert sweep_runs.check([run]) == {} and sweep_runs.begun(run)
  trained(0.5, 2)
  with pytest.raises(ValueError, match=f"with config.optim.learning_rate=0.5, not {rate}"):
    sweep_runs.check([run])
  trained(rate, 3)  # as the sweep wants it, but for one step
  with pytest.raises(ValueError, match=r"learning_rate=0\.5 from step 3 on"):
    sweep_runs.check([run])
  trained(rate, 2)  # that step was rolled back
  assert sweep_runs.check([run]) == {}
