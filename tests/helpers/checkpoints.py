"""Checkpoints of a state that no model is needed for."""

import grain
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from configs import base
from resjax.base.sharding import MeshConfig, make_layout
from resjax.train.checkpoint.config import CheckpointConfig
from resjax.train.checkpoint.manager import Checkpoints
from resjax.train.guard import GuardState
from resjax.train.state import TrainState
from tests.helpers import layouts

DATA = MeshConfig()  # all devices along `data`


def settings(**changes) -> CheckpointConfig:
  return CheckpointConfig(**(base.checkpoint() | changes))


def opened(folder: epath.PathLike, **changes) -> Checkpoints:
  """Checkpoints with some settings; what they say is in the list `said`."""
  said = []
  found = Checkpoints(folder, settings(**changes), batch_size=8, say=said.append)
  found.said = said
  return found


def numbers(count: int = 1000) -> grain.DatasetIterator:
  return iter(grain.MapDataset.range(count).to_iter_dataset())


def small_state(step: int, mesh: MeshConfig = DATA, size: int = 64) -> TrainState:
  """A state that its step decides, in several dtypes and layouts."""
  layout = make_layout(mesh, layouts.sharding())

  def put(x, *axes):
    sharding = layout.sharding(*axes)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

  w = np.random.default_rng(step).standard_normal((size, 64)).astype(np.float32)
  params = {"layers": {"w": put(w, "embed_param", "mlp")}, "scale": put(w[0], None)}
  moments = {"mu": put((-w).astype(jnp.bfloat16), "embed_param", None)}
  count = np.array(step, np.int32)
  guard = jax.tree.map(lambda leaf: put(np.asarray(leaf + step)), GuardState.zeros())
  return TrainState(put(count), params, (moments, {"count": put(count)}), guard)


def abstract(state: TrainState) -> TrainState:
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def fill(folder: epath.PathLike, *steps: int, **changes) -> None:
  """Saves the states of some steps, each after as many batches."""
  batches = numbers()
  with opened(folder, **changes) as checkpoints:
    for step in steps:
      batches.set_state({"next_index": step})
      checkpoints.save(step, small_state(step), batches)


def assert_restores(checkpoints: Checkpoints, wanted: int, size: int = 64) -> None:
  """The state and the data of a step come back, on other devices."""
  state, batches = small_state(wanted, MeshConfig(fsdp=2, tensor=2), size), numbers()
  step, restored = checkpoints.restore(abstract(state), batches)
  assert step == wanted
  assert next(batches) == wanted
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  for got, want in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
    assert got.dtype == want.dtype and got.sharding == want.sharding
    for ours, theirs in zip(got.addressable_shards, want.addressable_shards, strict=True):
      np.testing.assert_array_equal(ours.data, theirs.data)
