"""`resjax train --config=configs/tiny.py --config.model.residual.name=NAME`, for every name."""

import jax
import numpy as np
import pytest

from configs import tiny
from resjax.base.records.metrics_log import read_metrics
from resjax.models.model_def import ModelDef
from resjax.train import experiment, optim
from resjax.train.state import init_state
from resjax.train.step import make_train_step
from tests.helpers import layouts, walks
from tests.helpers.runs import command, finish, write_text

V, T, B, STEPS = 32, 8, 8, 4
# The other commands' tests run block_attn_res.
ONE_PER_STRATEGY = ("gate", pytest.param("attn_res", marks=pytest.mark.release))


def narrow(name):
  """The run of tiny.py with a combinator: all its layers and options, narrow ones."""
  c = tiny.get_config()
  c.model.residual.name = name
  c.model.update(d_model=16, num_heads=2, num_kv_heads=1, mlp_dim=24)
  c.data.seq_len = T
  c.optim.update(learning_rate=1e-2, warmup_steps=1)
  c.train.update(batch_size=B, loss_chunk=B * T)
  return experiment.build(c).with_vocab_size(V)


def batch(layout):
  tokens = np.random.default_rng(0).integers(0, V, (B, T + 1), dtype=np.int32)
  rows = {
    "inputs": tokens[:, :-1],
    "targets": tokens[:, 1:],
    "segment_ids": np.ones((B, T), np.int32),
    "positions": np.broadcast_to(np.arange(T, dtype=np.int32), (B, T)),
  }
  return jax.device_put(rows, layout.sharding("batch", "tokens"))


@walks.names("muddformer", "deepnorm", "x0_residual")
@pytest.mark.slow
def test_trains(name):
  run = narrow(name)
  layout = layouts.layout(devices=jax.devices()[:1])
  model = ModelDef(run.decoder, layout)
  optimizer = optim.make_optimizer(run.optim, STEPS, model.decayed_combinator_paths)
  step = make_train_step(model, optimizer, optim.schedule(run.optim, STEPS), run.train)
  arguments = init_state(model, optimizer, run.seed), batch(layout)
  step = step.lower(*arguments).compile()
  state, losses = arguments[0], []
  for _ in range(STEPS):
    state, metrics = step(state, *arguments[1:])
    losses.append(float(metrics["sums"].nats / metrics["sums"].tokens))
    assert np.isfinite(metrics["grad_norm"])
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
  assert losses[-1] < losses[0] < 2 * np.log(V), losses


def check_command(name, folder):
  """Two steps of the command, evaluated, measured and sampled from."""
  write_text(folder)
  settings = {"model.residual.name": name, "train.steps": 2, "optim.warmup_steps": 1}
  settings |= {"train.alignment_every": 2, "train.sample_tokens": 8}
  flags = [f"--config.{key}={value}" for key, value in settings.items()]
  output = finish(command(folder, folder / "run", *flags))
  assert f"in the combinator {name!r}" in " ".join(output.split())
  assert output.count("sample (temperature 0.8):\n") == 1
  assert output.splitlines()[-1].startswith("done: 2 steps; validation ")
  records = read_metrics(folder / "run" / "metrics.jsonl")
  losses = [r["validation/loss"] for r in records if "validation/loss" in r]
  assert len(losses) == 2 and losses[1] < losses[0]
  ranks = [r["alignment/next_log_rank/2"] for r in records if "alignment/num_rows" in r]
  assert len(ranks) == 2 and ranks[1] < ranks[0]


@pytest.mark.parametrize("name", ONE_PER_STRATEGY)
@pytest.mark.slow
def test_command(name, tmp_path):
  check_command(name, tmp_path)


@pytest.mark.release
@pytest.mark.parametrize("name", ["deepnorm", "x0_residual", "deep_delta", "muddformer", "mhc"])
def test_command_with_systems_of_other_shapes(name, tmp_path):
  check_command(name, tmp_path)
