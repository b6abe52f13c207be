"""The training step: accumulation, sharding, clipping, and what it leaves alone."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from configs import tiny
from resjax.models.model_def import ModelDef
from resjax.train import experiment, optim, program
from resjax.train.state import abstract_state, init_state
from resjax.train.step import make_eval_step, make_train_step
from tests.helpers import layouts

V, T, B = 64, 16, 8
KEYS = ("inputs", "targets", "segment_ids", "positions")


pytestmark = pytest.mark.usefixtures("without_promotion")


def setup(mesh=None, optimizer="adamw", **train):
  c = tiny.get_config()
  c.optim.name = optimizer
  c.model.update(num_layers=3, d_model=32, mlp_dim=64)
  c.model.residual.block_attn_res.layers_per_block = 2
  c.data.seq_len = T
  c.train.update(batch_size=B, loss_chunk=32)
  run = experiment.build(c).with_vocab_size(V)
  run = dataclasses.replace(run, train=dataclasses.replace(run.train, **train))
  devices = jax.devices() if mesh else jax.devices()[:1]
  layout = layouts.layout(devices=devices, **mesh or {})
  model = ModelDef(run.decoder, layout)
  optimizer = optim.make_optimizer(run.optim, 100)
  step = make_train_step(model, optimizer, optim.schedule(run.optim, 100), run.train)
  return run, model, optimizer, step


def batch(model, padded=True):
  rng = np.random.default_rng(0)
  rows = {key: np.zeros((B, T), np.int32) for key in KEYS}
  rows["inputs"], rows["targets"] = rng.integers(0, V, (2, B, T), dtype=np.int32)
  rows["positions"] += np.arange(T, dtype=np.int32)
  rows["segment_ids"] += 1
  if padded:  # rows of very different weight
    for row in range(B):
      rows["segment_ids"][row, 2 * row + 1 :] = 0
  return jax.device_put(rows, model.layout.sharding("batch", "tokens"))


def one_step(made):
  _run, model, optimizer, step = made
  state = init_state(model, optimizer, seed=0)
  state, metrics = step(state, batch(model))
  return jax.device_get((state, metrics))


def relative(a, b):
  leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  pairs = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in leaves]
  difference = sum(np.sum((x - y) ** 2) for x, y in pairs)
  return np.sqrt(difference / sum(np.sum(y**2) for _, y in pairs))


@pytest.fixture(scope="module")
def plain():
  """Compiled once for all that change nothing."""
  return setup()


@pytest.fixture(scope="module")
def whole(plain):
  return one_step(plain)


@pytest.mark.parametrize("microbatches", [2, pytest.param(8, marks=pytest.mark.release)])
def test_microbatches_weigh_by_tokens(whole, microbatches):
  state, metrics = one_step(setup(microbatches=microbatches))
  assert metrics["sums"].tokens == whole[1]["sums"].tokens
  assert relative(metrics, whole[1]) < 1e-6
  # The first moment is (1 - b1) · gradient, clipped alike.
  moments = [jax.tree.leaves(optax_state) for optax_state in (state.opt_state, whole[0].opt_state)]
  assert relative(*moments) < 1e-5


@pytest.mark.parametrize(
  "mesh",
  [
    pytest.param({"data": 8}, marks=pytest.mark.release),
    pytest.param({"data": 1, "fsdp": 8}, marks=pytest.mark.release),
    {"data": 2, "fsdp": 2, "tensor": 2},
  ],
  ids=["data", "fsdp", "mixed"],
)
def test_sharded_step_is_the_step_of_one_device(whole, mesh):
  state, metrics = one_step(setup(mesh))
  assert relative(metrics, whole[1]) < 1e-5
  moments = [jax.tree.leaves(optax_state) for optax_state in (state.opt_state, whole[0].opt_state)]
  assert relative(*moments) < 1e-5


@pytest.mark.release
def test_sharded_step_of_muon_is_the_step_of_one_device():
  mesh = {"data": 2, "fsdp": 2, "tensor": 2}
  start = init_state(*setup(optimizer="muon")[1:3], seed=0).params
  states = [one_step(setup(m, "muon"))[0] for m in (mesh, None)]
  changes = [jax.tree.map(lambda new, old: new - old, state.params, start) for state in states]
  # Gradients agree to 1e-6; five Newton-Schulz iterations of slope 3.4 at zero make it 450 times.
  assert relative(*changes) < 450e-6


@pytest.mark.parametrize("name", ["adamw", pytest.param("muon", marks=pytest.mark.release)])
def test_state_is_made_and_stays_where_it_belongs(name):
  _run, model, optimizer, step = setup({"data": 2, "fsdp": 2, "tensor": 2}, optimizer=name)
  state = init_state(model, optimizer, seed=0)
  abstract = abstract_state(model, optimizer)
  assert_placed(state, abstract)
  next_state, _ = step(state, batch(model))
  assert_placed(next_state, abstract)
  moment = optax.tree_utils.tree_get(next_state.opt_state, "mu", filtering=has_matrices)
  kernel = moment["layers"]["mlp"]["up_proj"]["kernel"]  # [L, D, F]
  assert kernel.addressable_shards[0].data.shape == (3, 32 // 2, 64 // 2)


def has_matrices(path, moment):
  return not isinstance(moment["layers"]["mlp"]["up_proj"]["kernel"], optax.MaskedNode)


def assert_placed(state, abstract):
  for made, planned in zip(jax.tree.leaves(state), jax.tree.leaves(abstract), strict=True):
    assert made.sharding.is_equivalent_to(planned.sharding, made.ndim)


def test_parameters_do_not_depend_on_the_mesh():
  state = init_state(*setup({"data": 1, "fsdp": 4, "tensor": 2})[1:3], seed=0)
  kernel = state.params["layers"]["mlp"]["up_proj"]["kernel"]  # [L, D, F]
  assert kernel.addressable_shards[0].data.shape == (3, 32 // 4, 64 // 2)
  alone = init_state(*setup()[1:3], seed=0)
  assert relative(jax.device_get(state.params), jax.device_get(alone.params)) == 0


def test_a_step_with_every_option_needs_no_promotion():
  c = tiny.get_config()
  c.optim.name = "muon"
  c.model.update(
    num_layers=4, d_model=32, mlp_dim=64, num_heads=4, num_kv_heads=2, dtype="bfloat16",
    norm="layernorm", norm_bias=True, bias="all", qk_norm=True, post_norm=True, windows=(8, 0),
    attention_softcap=20.0, logit_softcap=30.0, embed_scale=True, value_residual="gated",
    value_mixing="depth",
  )  # fmt: skip
  c.model.short_swa.window = c.model.norm_gate.rank = 4
  c.model.depth_values.update(stride=2, zero_init=True)
  c.model.rope_scaling.update(kind="yarn", factor=2.0, original_max_positions=8)
  c.data.seq_len = T
  c.train.update(batch_size=B, loss_chunk=32, microbatches=2, z_loss=1e-4)
  built = program.build(experiment.build(c, jax.devices()[:1]).with_vocab_size(V))
  state, _ = jax.eval_shape(built.train_step, built.state, built.batch)
  for after, before in zip(jax.tree.leaves(state), jax.tree.leaves(built.state), strict=True):
    assert (after.shape, after.dtype) == (before.shape, before.dtype)


def test_same_seed_same_step_bit_by_bit(whole):
  again = one_step(setup())
  for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(whole), strict=True):
    np.testing.assert_array_equal(a, b)


def test_rows_of_padding_change_nothing(plain):
  _run, model, optimizer, step = plain
  full = batch(model, padded=False)
  emptied = {key: rows.at[4:].set(0) for key, rows in full.items()}
  garbage = {**emptied, "inputs": full["inputs"], "targets": full["targets"]}
  results = [
    jax.device_get(step(init_state(model, optimizer, seed=0), rows)) for rows in (emptied, garbage)
  ]
  assert relative(results[0][0].params, results[1][0].params) < 1e-6
  assert results[0][1]["sums"].tokens == 4 * T


def test_evaluation_agrees_with_the_loss_of_the_step(plain, whole):
  run, model, optimizer, _ = plain
  params = init_state(model, optimizer, seed=0).params
  sums = make_eval_step(model, run.train)(params, batch(model))
  assert relative(jax.device_get(sums), whole[1]["sums"]) < 1e-6


def test_loss_falls_on_a_batch_that_repeats(plain):
  _run, model, optimizer, step = plain
  state, rows = init_state(model, optimizer, seed=0), batch(model)
  losses = []
  for _ in range(50):
    state, metrics = step(state, rows)
    losses.append(float(metrics["sums"].nats / metrics["sums"].tokens))
  assert losses[0] == pytest.approx(np.log(V), rel=0.02)
  assert losses[-1] < 0.5 * losses[0]
  assert int(state.step) == 50
