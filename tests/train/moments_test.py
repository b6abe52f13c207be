"""Moments that are split over `data` too (ZeRO-1): the same updates, less memory, one gather."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from configs import tiny
from launch.bench.program import hlo
from launch.bench.program.collectives import collectives
from resjax.base.sharding import Layout, layout
from resjax.train import experiment, program
from resjax.train.dry_run import bytes_per_device
from resjax.train.state import init_state
from tests.helpers import layouts

DATA, FSDP, T = 4, 2, 16


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
  """Splits the moments of all matrices here, and of nothing smaller."""
  monkeypatch.setattr(layout, "SMALL_MOMENTS", 512)


def programs(moments, optimizer="adamw", microbatches=1, **mesh):
  c = tiny.get_config()
  c.model.update(num_layers=4, d_model=32, num_heads=4, num_kv_heads=2, mlp_dim=64)
  c.model.residual.block_attn_res.layers_per_block = 2
  c.data.seq_len = T
  c.data.tokenizer.update(name="bpe", vocab_size=512)
  c.optim.update(name=optimizer, warmup_steps=1)
  c.train.update(batch_size=16, microbatches=microbatches, steps=9)
  c.mesh.update(**(mesh or {"data": DATA, "fsdp": FSDP}))
  c.sharding.fsdp_tp.moments = moments
  return program.build(experiment.build(c, jax.devices()))


def states(made, steps=3):
  """The host's copy of the state after some steps, each on another batch."""
  state, rng = init_state(made.model, made.optimizer, seed=0), np.random.default_rng(0)
  for _ in range(steps):
    rows = {key: rng.integers(1, 512, leaf.shape) for key, leaf in made.batch.items()}
    rows["positions"] = np.tile(np.arange(T), (16, 1))
    rows["segment_ids"] = np.ones((16, T))
    rows = {key: np.asarray(value, np.int32) for key, value in rows.items()}
    placed = {key: jax.device_put(rows[key], leaf.sharding) for key, leaf in made.batch.items()}
    state, _ = made.train_step(state, placed)
  for leaf, planned in zip(jax.tree.leaves(state), jax.tree.leaves(made.state), strict=True):
    assert leaf.sharding.is_equivalent_to(planned.sharding, leaf.ndim)
  return jax.device_get(state)


@pytest.mark.parametrize(
  ("optimizer", "microbatches"), [("adamw", 2), pytest.param("muon", 1, marks=pytest.mark.release)]
)
@pytest.mark.slow
def test_updates_are_the_same(optimizer, microbatches):
  whole, split = (states(programs(moments, optimizer, microbatches)) for moments in ((), ("data",)))
  assert whole.step == split.step == 3
  for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
    # An update is about the learning rate, 4e-3, however small the gradient: where a gradient is
    # little more than rounding, another order of its sum moves the update by a share of that.
    np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_memory_falls_by_the_devices_along_data():
  whole, split = programs(()), programs(("data",))
  assert split.state.params == whole.state.params
  before, after = (bytes_per_device(made.state.opt_state) for made in (whole, split))
  assert before / DATA <= after < 1.1 * before / DATA  # norms and counters are not split
  shapes = [
    [leaf.shape for leaf in jax.tree.leaves(made.state.opt_state)] for made in (whole, split)
  ]
  assert shapes[0] == shapes[1]  # as checkpoints have them


def exchanged(made):
  compiled = made.lower_train_step().compile()
  return [
    row
    for row in collectives(hlo.parse(compiled.as_text()), made.model.layout.mesh)
    if row.axes == ("data",)
  ]


@pytest.mark.slow
def test_updated_parameters_are_gathered_once_per_step():
  """The compiler for CPUs has no reduce-scatters of its own: it sums whole gradients."""
  made = programs(("data",), microbatches=2)
  assert not [row for row in exchanged(programs((), microbatches=2)) if row.kind == "all-gather"]
  gathers = [row for row in exchanged(made) if row.kind == "all-gather"]
  assert all(row.times == row.places for row in gathers)  # in no loop
  gathered = sum(row.num_bytes * row.times for row in gathers)
  split = [
    bytes_per_device(param)
    for param in jax.tree.leaves(made.state.params)
    if made.model.layout.moments(param) != param.sharding
  ]
  assert gathered == sum(split) > 0.9 * bytes_per_device(made.state.params)


def made_layout(moments):
  base = layouts.layout(data=DATA, fsdp=FSDP)
  return Layout(base.mesh, dataclasses.replace(base.rules, moments=moments))


@pytest.mark.parametrize(
  ("shape", "axes", "moments", "expected"),
  [
    ((3, 32, 64), ("layers", "embed_param", "mlp"), ("data",), (None, "fsdp", "data")),
    ((8, 16, 64), (None, None, None), ("data",), (None, None, "data")),
    ((3, 64, 6), ("layers", "embed_param", "mlp"), ("data",), (None, ("fsdp", "data"), None)),
    ((3, 66, 35), ("layers", "embed_param", None), ("data",), (None, "fsdp", None)),  # none divides
    ((4, 60), (None, None), ("data",), (None, None)),  # small
    ((3, 32, 64), ("layers", "embed_param", "mlp"), ("fsdp",), (None, "fsdp", None)),
    ((8, 155), (None, None), ("data", "fsdp"), (("data", "fsdp"), None)),
    ((3, 32, 64), ("layers", "embed_param", "mlp"), (), (None, "fsdp", None)),
  ],
)
def test_moments_split_an_axis_that_divides(shape, axes, moments, expected):
  made = made_layout(moments)
  parameter = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=made.sharding(*axes))
  found = made.moments(parameter)
  wanted = jax.sharding.NamedSharding(made.mesh, PartitionSpec(*expected))
  assert found.is_equivalent_to(wanted, len(shape))
  assert math.prod(found.shard_shape(shape)) <= math.prod(parameter.sharding.shard_shape(shape))


def test_a_rule_of_moments_names_mesh_axes():
  rules = layouts.sharding("dp").rules
  with pytest.raises(ValueError, match=r"moments=\('dat',\): 'dat' is not a mesh axis; did you"):
    dataclasses.replace(rules, moments=("dat",))
  assert "fsdp" not in dataclasses.replace(rules, moments=("fsdp",)).used  # parameters stay whole
