"""Depth retrieval of systems whose answer is known before."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.models import depth
from resjax.study.analysis.depth_retrieval.task import SITE, Setup, System, Task, ceiling
from resjax.study.analysis.depth_retrieval.training import _output, accuracies
from resjax.testing import toy

SHORT = Setup(num_symbols=4, d_model=16, steps=150, batch_size=64, evaluation_batches=40)


def test_the_plain_stream_is_at_its_ceiling_and_denseformer_above_it():
  tasks = [Task(1), Task(None)]
  plain = accuracies(System("standard"), 2, tasks, (0, 1), SHORT)
  limit = ceiling(4, 3)
  # 2,560 examples: four standard deviations are 0.04.
  np.testing.assert_allclose(plain, limit, atol=0.04)
  dense = accuracies(System("denseformer"), 2, tasks, (0, 1), SHORT)
  assert (dense[0] > 0.95).all() and (abs(dense[1] - limit) < 0.06).all()


@pytest.mark.slow
def test_runs_do_not_depend_on_those_beside_them():
  both = accuracies(System("attn_res"), 2, [Task(1), Task(None)], (0, 1), SHORT)
  alone = accuracies(System("attn_res"), 2, [Task(None)], (1,), SHORT)
  np.testing.assert_allclose(alone[0, 0], both[1, 1], atol=0.01)
  assert (both > 0.95).all()


@pytest.mark.parametrize(
  "text",
  [
    "deep_delta",
    "deepnorm",
    "block_attn_res",
    pytest.param("muddformer", marks=pytest.mark.release),
  ],
)
@pytest.mark.slow
def test_output_is_that_of_the_depth_runner(text):
  made = System(text).build(4, 8, nnx.Rngs(0))
  writes = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3, 8)), jnp.float32)

  def branch(row, site, views, context):
    return {k: toy.rms_norm(v) if made.pre_norm else v for k, v in views.items()}, row

  x = depth.run(made, writes[1:][:, :, None], writes[0][:, None], branch)
  np.testing.assert_allclose(_output(made, writes, False), toy.rms_norm(x)[:, 0], atol=1e-5)


def test_the_next_read_of_a_plain_stream_is_its_output():
  made = combinators.build("standard", num_layers=4, d_model=8, sites=(SITE,), rngs=nnx.Rngs(0))
  writes = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3, 8)), jnp.float32)
  np.testing.assert_array_equal(_output(made, writes, True), _output(made, writes, False))


SETTLED = (
  "gate", "gate:granularity=token", "denseformer", "attn_res",
  "deep_delta:value_width=1:compressor=none:embedding_expansion=False",
)  # fmt: skip


@pytest.mark.release
@pytest.mark.parametrize("text", SETTLED)
def test_these_systems_find_the_last_source(text):
  assert (accuracies(System.parse(text), 7, [Task(7)], (0, 1), Setup()) >= 0.95).all()


@pytest.mark.release
def test_the_plain_stream_of_seven_layers_is_at_its_ceiling():
  found = accuracies(System("standard"), 7, [Task(0), Task(7), Task(None)], (0, 1), Setup())
  assert (abs(found - ceiling(32, 8)) <= 0.03).all()


@pytest.mark.release
def test_content_selects_for_attention_residuals():
  assert (accuracies(System("attn_res"), 7, [Task(None)], (0, 1), Setup()) >= 0.95).all()
