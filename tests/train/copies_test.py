"""Gradients of microbatches are added up by each copy of the model, and exchanged once per step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import tiny
from launch.bench.program import hlo
from launch.bench.program.collectives import collectives
from resjax import combinators
from resjax.base.sharding import Layout
from resjax.models import LossSums
from resjax.models.model_def import ModelDef
from resjax.testing.compare import assert_close
from resjax.train import experiment, gradients, step
from resjax.train.state import init_state
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


def wide_sums(decoder, hidden, batch, chunk):
  """The loss of a step in the dtype of the hidden states, where its own makes float32 of them."""
  logits = decoder.logits(hidden)
  lse = jax.nn.logsumexp(logits, axis=-1)
  own = jnp.sum(logits * jax.nn.one_hot(batch["targets"], logits.shape[-1]), axis=-1)
  asked = batch["segment_ids"] != 0
  sums = [jnp.sum(jnp.where(asked, a, 0)) for a in (lse - own, lse**2, jnp.ones_like(lse))]
  return LossSums(*(a.astype(jnp.float32) for a in (*sums, jnp.zeros(()), jnp.zeros(()))))


def step_of(name, layout, microbatches):
  """The compiled step by plain gradient descent, whose parameters tell gradients, and its input.

  In float64: where terms of gradients cancel, the order of sums in float32 tells by 1e-6.
  """
  decoder = dataclasses.replace(config(name), dtype="float64")
  model, optimizer = ModelDef(decoder, layout), optax.sgd(1.0)
  plain = experiment.build(tiny.get_config()).train
  settings = dataclasses.replace(plain, batch_size=8, microbatches=microbatches, loss_chunk=16)
  made = step.step_function(model, optimizer, optax.constant_schedule(1.0), settings)
  state = init_state(model, optimizer, seed=0)
  state = dataclasses.replace(
    state, params=jax.tree.map(lambda a: a.astype("float64"), state.params)
  )
  rows = batch()
  if layout.has_mesh:
    rows = layout.put(rows, len(rows["inputs"]))
  return jax.jit(made).lower(state, rows).compile(), (state, rows)


@pytest.mark.parametrize("name, rules", walk())
def test_microbatches_of_copies_are_those_of_one_device(name, rules, monkeypatch):
  monkeypatch.setattr(gradients, "loss_sums", wide_sums)
  mesh = MESHES[rules]
  layout = layouts.layout(rules, devices=jax.devices()[: np.prod([*mesh.values()])], **mesh)
  with jax.enable_x64(True):
    program, arguments = step_of(name, layout, 2)
    plain, others = step_of(name, Layout(), 1)
    (got, told), (want, known) = program(*arguments), plain(*others)
  assert_close(jax.device_get(got.params), jax.device_get(want.params), 1e-12)
  assert_close(jax.device_get(told["sums"]), jax.device_get(known["sums"]), 5e-7)
  found = collectives(hlo.parse(program.as_text()), layout.mesh)
  over_copies = [row for row in found if "data" in row.axes]
  assert over_copies and all(row.times == row.places for row in over_copies)
