"""Runs of a few steps in this process."""

import contextlib
import io
from unittest import mock

from rich.console import Console

from configs import tiny
from resjax.base.records.metrics_log import METRICS_FILE, read_metrics
from resjax.train import experiment
from resjax.train.loop import train

STEPS, B, T = 3, 8, 32


def settings(root, workdir, name, **train):
  c = tiny.get_config()
  c.workdir = str(workdir)
  c.mesh.update(data=4, fsdp=2)
  # Reads that are means of up to 7 sources: eps must be small beside their mean square.
  c.model.update(num_layers=3, d_model=32, mlp_dim=64, norm_eps=1e-12)
  c.model.residual.name = name
  c.data.update(root=str(root / "data"), seq_len=T, validation_fraction=0.2)
  c.data.corpora.stdlib.source = str(root / "text")
  c.data.tokenizer.name = "byte"
  c.optim.update(learning_rate=1e-2, warmup_steps=1)
  c.train.update(steps=STEPS, batch_size=B, eval_rows=16, sample_tokens=0, alignment_every=0)
  c.train.update(**train)
  return c


def run(config, *, draws: bool = False) -> str:
  """Trains a config and returns what it printed; no figures are drawn unless it `draws`."""
  printed = io.StringIO()
  saving = contextlib.nullcontext() if draws else mock.patch("resjax.study.analysis.plots.save")
  with saving:
    train(experiment.build(config), Console(file=printed, width=200))
  return printed.getvalue()


def evaluations(workdir):
  return [
    r["validation/loss"] for r in read_metrics(workdir / METRICS_FILE) if "validation/loss" in r
  ]
