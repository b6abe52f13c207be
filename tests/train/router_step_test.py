"""Routers in a training step: their losses, their biases, and what the log says of them."""

import dataclasses
import functools

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from configs import moe_tiny
from resjax.base import NOT_ASKED
from resjax.models import routing_record
from resjax.models.model_def import ModelDef
from resjax.nn import Routing
from resjax.train import experiment, optim, program, run_tables, together
from resjax.train.runs import restore
from resjax.train.state import init_state
from resjax.train.step import make_train_step
from tests.helpers import layouts, trained
from tests.helpers.runs import write_text
from tests.train import step_test

RATE = 0.125
pytestmark = pytest.mark.usefixtures("without_promotion")


@functools.cache  # each compiles a step
def setup(**train):
  c = moe_tiny.get_config()
  c.model.update(num_layers=3, d_model=32, mlp_dim=64)
  c.model.residual.name = "standard"
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


@pytest.mark.slow
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


def a_run(root, name, steps, **moe):
  c = trained.settings(root, root / name, "standard", steps=steps)
  c.model.moe.update(num_experts=4, expert_dim=16, first_dense=1, **moe)
  c.mesh.update(data=2, fsdp=2, expert=2)
  return c


def kept(workdir, step):
  return jax.tree.leaves(ocp.StandardCheckpointer().restore(workdir / f"checkpoints/{step}/params"))


@pytest.mark.slow
def test_a_run_with_muon_goes_on_bit_by_bit_and_is_a_parent(tmp_path):
  c = a_run(write_text(tmp_path), "run", 4, selection_bias=True)
  c.optim.name, c.checkpoint.every = "muon", 2
  trained.run(c)
  straight, place = kept(tmp_path / "run", 4), tmp_path / "run" / "checkpoints" / "4"
  place.rename(tmp_path / "gone")
  assert "step 2" in trained.run(c)
  for again, before in zip(kept(tmp_path / "run", 4), straight, strict=True):
    np.testing.assert_array_equal(again, before)
  child = a_run(tmp_path, "child", 1, selection_bias=True)
  child.model.residual.name, child.train.init_from = "gate", str(tmp_path / "run")
  trained.run(child)
  first, last = (
    trained.evaluations(tmp_path / "child")[0],
    trained.evaluations(tmp_path / "run")[-1],
  )
  assert first == pytest.approx(last, rel=1e-6)


@pytest.mark.release
def test_runs_together_are_each_alone():
  run, model, *_ = setup()
  made, single = together.build(run, 2), program.build(run)
  states = [init_state(made.model, made.optimizer, seed) for seed in (0, 1)]
  both = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
  rows = jax.tree.map(np.asarray, step_test.batch(model)) | {
    "bytes": np.ones(step_test.B, np.int32)
  }
  batches = jax.tree.map(lambda leaf: np.stack([leaf, leaf[::-1]]), rows)
  got = jax.device_get(made.train_step(both, batches, np.full(2, run.optim.learning_rate)))
  last = jax.tree.map(lambda leaf: leaf[1], batches)
  want = jax.device_get(single.train_step(states[1], last))
  for a, b in zip(*map(jax.tree.leaves, (got, want)), strict=True):
    np.testing.assert_allclose(a[1], b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_run_with_experts_in_some_layers_is_loaded(tmp_path):
  trained.run(a_run(write_text(tmp_path), "run", 1))
  place = str(tmp_path / "run")
  model = restore.restore_model(experiment.load(place), restore.find(place, "--checkpoint"))
  assert model.decoder.config.dense_layers == (0,)
  kernel = model.decoder.layers.moe.up_proj.kernel
  assert kernel.shape[:2] == (2, 4)


def test_losses_of_routers_weigh_as_much_where_few_targets_are_asked():
  # So large a factor that the gradient is all but that of the balance loss.
  _, model, optimizer, step = setup(router_balance_loss=1e5)
  batch = step_test.batch(model)
  some = {**batch, "targets": batch["targets"].at[:, 1:].set(NOT_ASKED)}
  states = (init_state(model, optimizer, seed=0) for _ in range(2))
  every, few = (
    float(step(*each)[1]["grad_norm"]) for each in zip(states, (batch, some), strict=True)
  )
  assert few == pytest.approx(every, rel=0.02)
