"""What is saved comes back bit by bit, laid out as it was."""

import dataclasses

import grain
import jax
import numpy as np
import pytest

from configs import tiny
from resjax import experiment, optim
from resjax.train.checkpoint import Checkpoints
from resjax.train.state import ModelDef, abstract_state, init_state
from tests.helpers import layouts


def numbers():
  return iter(grain.MapDataset.range(9).to_iter_dataset())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_state_comes_back(tmp_path, name):
  c = tiny.get_config()
  c.optim.name = name
  c.model.update(num_layers=2, d_model=32, mlp_dim=64)
  run = experiment.build(c).with_vocab_size(64)
  model = ModelDef(run.decoder, layouts.layout(data=2, fsdp=2, tensor=2))
  optimizer = optim.make_optimizer(run.optim, 300)
  state = init_state(model, optimizer, seed=0)
  # Moments of a fresh state are zero: any would do.
  state = dataclasses.replace(state, opt_state=jax.tree.map(lambda x: x + 1, state.opt_state))
  batches = numbers()
  seen = [next(batches) for _ in range(3)]
  with Checkpoints(tmp_path, keep_last=1) as checkpoints:
    checkpoints.save(7, state, batches)
  with Checkpoints(tmp_path, keep_last=1) as checkpoints:
    assert checkpoints.latest == 7
    again = numbers()
    restored = checkpoints.restore(abstract_state(model, optimizer), again)
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  for got, want in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
    np.testing.assert_array_equal(got, want)
    assert got.sharding.is_equivalent_to(want.sharding, want.ndim)
  assert [*seen, *again] == list(range(9))
