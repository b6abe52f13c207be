"""A checkpoint goes on on any other mesh: the next step has the loss it would have had."""

import functools

import jax
import numpy as np
import pytest

from configs import tiny
from resjax.models.model_def import ModelDef
from resjax.train import experiment, optim
from resjax.train.checkpoint.manager import Checkpoints
from resjax.train.state import TrainState, abstract_state, init_state
from resjax.train.step import make_train_step
from tests.helpers import layouts
from tests.helpers.checkpoints import numbers, settings

STEPS = 2  # on every mesh


class Machine:
  """The trainer's step on some devices."""

  def __init__(self, devices: int, **axes):
    config = tiny.get_config()
    config.model.residual.name = "standard"
    config.model.update(num_layers=2, d_model=32, num_heads=2, num_kv_heads=2, mlp_dim=64)
    config.data.seq_len, config.train.batch_size = 16, 8
    config.optim.warmup_steps = 1
    run = experiment.build(config).with_vocab_size(64)
    self.layout = layouts.layout(devices=jax.devices()[:devices], **axes)
    self.model = ModelDef(run.decoder, self.layout)
    self.optimizer = optim.make_optimizer(run.optim, 100)
    schedule = optim.schedule(run.optim, 100)
    self._step = make_train_step(self.model, self.optimizer, schedule, run.train)

  def abstract(self) -> TrainState:
    return abstract_state(self.model, self.optimizer)

  def step(self, state: TrainState, number: int) -> tuple[TrainState, float]:
    tokens = np.random.default_rng(number).integers(64, size=(2, 8, 16)).astype(np.int32)
    ones = np.ones((8, 16), np.int32)
    batch = {"inputs": tokens[0], "targets": tokens[1], "segment_ids": ones}
    batch["positions"] = np.broadcast_to(np.arange(16, dtype=np.int32), (8, 16))
    state, metrics = self._step(state, self.layout.put(batch, 8))
    sums = jax.device_get(metrics["sums"])
    return state, float(sums.nats / sums.tokens)


@functools.cache
def machine_of(devices: int, *axes: tuple[str, int]) -> Machine:
  return Machine(devices, **dict(axes))


CHAINS = {
  "8, 4, 2, 1, 8": [(8, {}), (4, {}), (2, {}), (1, {}), (8, {})],
  "fsdp and fsdp with tensor": [
    (8, {"fsdp": 8}),
    (8, {"fsdp": 4, "tensor": 2}),
    (4, {"fsdp": 2, "tensor": 2}),
    (8, {"fsdp": 8}),
  ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
  "chain", ["8, 4, 2, 1, 8", pytest.param("fsdp and fsdp with tensor", marks=pytest.mark.release)]
)
def test_first_loss_on_the_next_mesh(tmp_path, chain):
  step, wanted = 0, None
  for devices, axes in CHAINS[chain]:
    machine = machine_of(devices, *axes.items())
    with Checkpoints(tmp_path, settings(), batch_size=8) as checkpoints:
      if step == 0:
        state = init_state(machine.model, machine.optimizer, seed=0)
      else:
        found, state = checkpoints.restore(machine.abstract(), numbers())
        assert found == step
        assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(
          lambda x: x.sharding, machine.abstract()
        )
        _, loss = machine.step(state, step + 1)
        assert abs(loss - wanted) <= 1e-6 * wanted
        _, state = checkpoints.restore(machine.abstract(), numbers())
      for _ in range(STEPS):
        step += 1
        state, _ = machine.step(state, step)
      checkpoints.save(step, state, numbers())
      _, wanted = machine.step(state, step + 1)
