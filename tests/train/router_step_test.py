"""Routers in a training step: their losses, their biases, and what the log says of them."""

import dataclasses

import jax
import numpy as np
import pytest

from configs import moe_tiny
from resjax.models import routing_record
from resjax.models.model_def import ModelDef
from resjax.nn import Routing
from resjax.train import experiment, optim, run_tables
from resjax.train.state import init_state
from resjax.train.step import make_train_step
from tests.helpers import layouts
from tests.train import step_test

RATE = 0.125
pytestmark = pytest.mark.usefixtures("without_promotion")


def setup(health=False, **train):
  c = moe_tiny.get_config()
  c.model.update(num_layers=3, d_model=32, mlp_dim=64)
  c.model.residual.block_attn_res.layers_per_block = 2
  c.model.moe.update(num_experts=4, expert_dim=16, first_dense=1, selection_bias=True)
  c.data.seq_len = step_test.T
  c.train.update(batch_size=step_test.B, loss_chunk=32, router_bias_rate=RATE)
  run = experiment.build(c).with_vocab_size(step_test.V)
  run = dataclasses.replace(run, train=dataclasses.replace(run.train, **train))
  model = ModelDef(run.decoder, layouts.layout(devices=jax.devices()[:1]))
  optimizer = optim.make_optimizer(run.optim, 100)
  schedule = optim.schedule(run.optim, 100)
  return run, model, optimizer, make_train_step(model, optimizer, schedule, run.train, run.health)


@pytest.fixture(scope="module")
def whole():
  return step_test.one_step(setup())


def test_biases_step_against_the_load_and_nothing_else_moves_them(whole):
  state, metrics = whole
  counts, moe = metrics["routing"].counts, state.params["layers"]["moe"]
  tokens = np.asarray(step_test.batch(setup()[1])["segment_ids"]) != 0
  assert counts.shape == (2, 4) and (counts.sum(-1) == 2 * tokens.sum()).all()
  np.testing.assert_array_equal(
    moe["selection_bias"], RATE * np.sign(counts.mean(-1, keepdims=True) - counts)
  )
  assert np.any(moe["selection_bias"])


def test_microbatches_choose_as_the_whole_batch_does(whole):
  state, metrics = step_test.one_step(setup(microbatches=2, router_balance_loss=0.0))
  plain, want = step_test.one_step(setup(router_balance_loss=0.0))
  for got in (metrics["routing"], want["routing"]):
    np.testing.assert_array_equal(got.counts, whole[1]["routing"].counts)
  np.testing.assert_allclose(metrics["routing"].z, want["routing"].z, rtol=1e-5)
  assert step_test.relative(state.params, plain.params) < 1e-4
  # The loss changes the routers.
  routers = (each.params["layers"]["moe"]["router"] for each in (whole[0], plain))
  assert step_test.relative(*routers) > 1e-5


def test_a_skipped_step_leaves_biases_as_they_were():
  _, model, optimizer, step = setup()
  state = init_state(model, optimizer, seed=0)
  params = jax.tree.map(lambda leaf: leaf, state.params)
  params["embed"]["embedding"] = params["embed"]["embedding"] * np.float32(np.nan)
  state, metrics = step(dataclasses.replace(state, params=params), step_test.batch(model))
  assert metrics["skipped"] == 1
  assert not np.any(state.params["layers"]["moe"]["selection_bias"])


def test_the_log_tells_dead_and_overloaded_experts():
  run, model, *_ = setup()
  counts = np.array([[8.0, 8, 8, 8], [24, 4, 4, 0]])  # 16 tokens with two choices each
  entropy = 16 * np.log(4) * np.array([1.0, 0.5])
  found = routing_record(run.decoder, Routing(counts, entropy, np.array(24.0), np.array(8.0)))
  assert found == pytest.approx({
    "router/dead": 1 / 8, "router/overloaded": 1 / 8, "router/max_load": 3.0,
    "router/entropy": 0.75, "router/balance": 1.5, "router/z": 0.5,
  })  # fmt: skip
  costs = run_tables.model_costs(model, run)
  # Two of four experts in each of two layers.
  assert costs["parameters"] - costs["active_parameters"] == 2 * 2 * 3 * 32 * 16
