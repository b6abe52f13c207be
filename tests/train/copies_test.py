"""Gradients of microbatches are added up by each copy of the model, and exchanged once per step."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from configs import tiny
from launch.bench.program import hlo
from launch.bench.program.collectives import collectives
from resjax import combinators
from resjax.base.sharding import Layout
from resjax.models.model_def import ModelDef
from resjax.testing.compare import assert_close
from resjax.train import experiment
from resjax.train.state import init_state
from resjax.train.step import step_function
from tests.base.sharding.equivalence_test import batch, config
from tests.helpers import layouts, walks

MESHES = {
  "dp": {"data": 4},
  "fsdp_tp": {"data": 2, "fsdp": 2, "tensor": 2},
  "long_context": {"data": 2, "fsdp": 2, "sequence": 2},
}
QUICK, SLOW = ("block_attn_res", "fsdp_tp"), ("standard", "long_context")


def walk():
  pairs = [(name, "fsdp_tp") for name in combinators.names()]
  return walks.words([*pairs, ("standard", "dp"), SLOW], quick=QUICK, slow=SLOW)


def step_of(name, layout, microbatches):
  """The compiled step by plain gradient descent, whose parameters tell gradients, and its input."""
  model, optimizer = ModelDef(config(name), layout), optax.sgd(1.0)
  plain = experiment.build(tiny.get_config()).train
  settings = dataclasses.replace(plain, batch_size=8, microbatches=microbatches, loss_chunk=16)
  step = step_function(model, optimizer, optax.constant_schedule(1.0), settings)
  state = init_state(model, optimizer, seed=0)
  rows = batch()
  if layout.has_mesh:
    rows = layout.put(rows, len(rows["inputs"]))
  return jax.jit(step).lower(state, rows).compile(), (state, rows)


@pytest.mark.parametrize("name, rules", walk())
def test_microbatches_of_copies_are_those_of_one_device(name, rules):
  mesh = MESHES[rules]
  layout = layouts.layout(rules, devices=jax.devices()[: np.prod([*mesh.values()])], **mesh)
  program, arguments = step_of(name, layout, 2)
  plain, others = step_of(name, Layout(), 1)
  (got, told), (want, known) = program(*arguments), plain(*others)
  assert_close(jax.device_get(got.params), jax.device_get(want.params), 1e-6)
  assert_close(jax.device_get(told["sums"]), jax.device_get(known["sums"]), 5e-7)
  found = collectives(hlo.parse(program.as_text()), layout.mesh)
  over_copies = [row for row in found if "data" in row.axes]
  assert over_copies and all(row.times == row.places for row in over_copies)
