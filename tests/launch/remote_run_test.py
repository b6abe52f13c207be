"""A whole run in an object store: corpus, built data, workdir; killed, resumed, sampled from."""

import os
import sys

import pytest

from resjax.base import locations
from resjax.base.records.metrics_log import read_metrics
from tests.helpers import runs

KEYS = ("train/loss", "train/grad_norm", "validation/loss")


@pytest.fixture
def command(gcs, bucket, tmp_path, monkeypatch):
  """Returns a function that gives the command of the run in a folder of the bucket."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  root = runs.write_text(tmp_path)
  for path in (root / "text").iterdir():
    gcs.put((bucket, f"text/{path.name}"), path.read_bytes())

  def make(name, **settings):
    places = {"data.root": "data", "data.corpora.stdlib.source": "text"}
    flags = [f"--config.{key}=gs://{bucket}/{value}" for key, value in places.items()]
    folder = locations.path(f"gs://{bucket}/{name}")
    return [*runs.small_command(root, folder, **settings), *flags]

  return make


def records(bucket, name):
  """What was measured, without times: (step, values)."""
  found = read_metrics(f"gs://{bucket}/{name}/metrics.jsonl")
  measured = [(r["step"], {key: r[key] for key in KEYS if key in r}) for r in found]
  return [(step, values) for step, values in measured if values]


def saved(gcs, bucket, name, step):
  return gcs.names(f"{bucket}/{name}/checkpoints/{step}/")


@pytest.mark.release
def test_a_run_that_is_killed_while_it_saves_goes_on(gcs, bucket, command, tmp_path):
  runs.finish([*command("whole"), "--config.train.tensorboard"])
  assert gcs.names(f"{bucket}/whole/tensorboard/") and gcs.names(f"{bucket}/whole/plots/")
  process = runs.start(command("killed"))
  runs.wait_for(process, lambda: saved(gcs, bucket, "killed", 20))
  process.kill()
  process.communicate()
  assert records(bucket, "killed")[-1][0] >= 20  # before the checkpoint
  output = runs.finish([*command("killed"), "--profile_steps=23:24"])
  assert "resuming after step 10 of" in output or "resuming after step 20 of" in output
  assert records(bucket, "killed") == records(bucket, "whole")
  whole, killed = (
    {n.split("/")[2] for n in gcs.names(f"{bucket}/{name}/checkpoints/")}
    for name in ("whole", "killed")
  )
  assert whole == killed == {"10", "20", "30"}
  assert any(name.endswith(".xplane.pb") for name in gcs.names(f"{bucket}/killed/profile/"))
  generate = [sys.executable, "-m", "resjax", "generate", "--num_tokens=8", "--temperature=0"]
  texts = [runs.finish([*generate, f"--checkpoint=gs://{bucket}/{n}"]) for n in ("whole", "killed")]
  assert texts[0].splitlines()[-2] == texts[1].splitlines()[-2]  # the last line names the run
  assert "gs:" not in os.listdir(runs.REPOSITORY)


@pytest.mark.release
def test_two_processes_train_there_from_another_run(gcs, bucket, command):
  runs.finish(command("parent", train__steps=10))
  origin = f"--config.train.init_from=gs://{bucket}/parent/checkpoints/10"
  settings = {"train__steps": 10, "checkpoint__every": 5, "optim__warmup_steps": 2}
  runs.finish([*command("alone", **settings), origin])
  together = runs.start_together(2, [*command("both", **settings), origin])
  outputs = runs.ends(together)
  assert [code for code, _ in outputs] == [0, 0], outputs
  assert f"starting from gs://{bucket}/parent/checkpoints/10" in outputs[0][1]
  alone, both = records(bucket, "alone"), records(bucket, "both")
  assert [step for step, _ in alone] == [step for step, _ in both]
  for (_, ours), (_, theirs) in zip(both, alone, strict=True):
    assert ours == pytest.approx(theirs, rel=1e-5)
  assert saved(gcs, bucket, "both", 5) and saved(gcs, bucket, "both", 10)
