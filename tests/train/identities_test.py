"""Systems that are `standard` by construction stay so through training."""

import jax
import numpy as np
import pytest

from configs import tiny
from resjax.models.model_def import ModelDef
from resjax.train import experiment, optim
from resjax.train.state import init_state
from resjax.train.step import make_train_step
from tests.helpers import layouts

V, T, B, STEPS = 64, 16, 8, 5


def trained(name, combinator_lr=1.0, **options):
  """The parameters of the network, without those of its combinator, after a few steps."""
  c = tiny.get_config()
  c.model.update(num_layers=3, d_model=32, mlp_dim=64)
  c.model.residual.name = name
  c.model.residual[name].update(options)
  c.data.seq_len = T
  c.optim.update(warmup_steps=1, combinator_lr_multiplier=combinator_lr, clip_norm=0.0)
  c.train.update(batch_size=B, steps=100)
  run = experiment.build(c).with_vocab_size(V)
  model = ModelDef(run.decoder, layouts.layout(devices=jax.devices()[:1]))
  optimizer = optim.make_optimizer(run.optim, 100)
  step = make_train_step(model, optimizer, optim.schedule(run.optim, 100), run.train)
  state = init_state(model, optimizer, seed=0)
  rng = np.random.default_rng(0)
  for _ in range(STEPS):
    inputs, targets = rng.integers(0, V, (2, B, T), dtype=np.int32)
    whole = np.ones((B, T), np.int32)
    batch = {"inputs": inputs, "targets": targets, "segment_ids": whole}
    batch["positions"] = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
    state, _ = step(state, batch)
  leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(state.params))
  named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
  return {name: leaf for name, leaf in named.items() if "combinator" not in name}


@pytest.fixture(scope="module")
def standard():
  return trained("standard")


def check_equal(found, expected):
  assert found.keys() == expected.keys()
  for name, leaf in expected.items():
    # Adam divides by the root of second moments, which lifts rounding of tiny gradients.
    np.testing.assert_allclose(found[name], leaf, rtol=1e-4, atol=2e-5, err_msg=name)


def test_a_cut_by_one_is_no_cut(standard):
  check_equal(trained("attenuation", alpha=1.0), standard)


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ["layer", "depth_mixture", "token", "channel"])
def test_a_gate_that_stays_at_one_is_no_gate(standard, granularity):
  check_equal(trained("gate", combinator_lr=0.0, granularity=granularity), standard)


@pytest.mark.slow
def test_a_gate_that_learns_and_a_cut_are_seen(standard):
  for other in (trained("gate"), trained("attenuation", alpha=0.9)):
    assert max(np.abs(other[name] - leaf).max() for name, leaf in standard.items()) > 2e-4
