"""The protocol in a model of others, docs/examples/mlp_mixer_linen.py."""

import os
import re
import subprocess
import sys
from pathlib import Path

import digits
import jax
import mlp_mixer_linen
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from tests.helpers import walks, xla

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
SIZES = {"num_layers": 3, "d_model": 8}
PATCHES, LABELS = (a[:32] for a in digits.load()[0])


def mlp_mixer(name):
  """Parameters of the model, and its loss as a function of them."""
  model = mlp_mixer_linen.MlpMixer(name, hidden=12, **SIZES)
  init = jax.jit(model.init)
  params = init(jax.random.key(0), PATCHES[:1])["params"]
  return params, lambda p: mlp_mixer_linen.loss(model, {"params": p}, PATCHES, LABELS)


@walks.names("attn_res")
@pytest.mark.slow
def test_mlp_mixer_learns_or_refuses_views_that_it_has_no_use_for(name):
  if name in ("deep_cross_attention", "muddformer"):
    with pytest.raises(ValueError, match="its branch leaves out q, k, v; attend with q, k and v"):
      mlp_mixer(name)
  else:
    check_learns(name)


def check_learns(name):
  params, loss = mlp_mixer(name)
  step = jax.jit(jax.value_and_grad(loss))
  losses = []
  for _ in range(16):
    value, gradients = step(params)
    losses.append(float(value))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
  assert np.isfinite(losses).all() and losses[-1] < 0.98 * losses[0], losses
  own = gradients.get("combinator", {})
  fresh = combinators.build(name, rngs=nnx.Rngs(0), **SIZES)
  assert sum(leaf.size for leaf in jax.tree.leaves(own)) == fresh.num_parameters()


@pytest.mark.slow
def test_the_example_runs_and_classifies(tmp_path):
  command = [sys.executable, EXAMPLES / "mlp_mixer_linen.py", "--combinator=gate", "--steps=30"]
  env = {**os.environ, "XLA_FLAGS": xla.QUICK, "PYTHONPATH": os.pathsep.join(sys.path)}
  done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
  found = re.search(r"^gate: test accuracy ([0-9.]+)%$", done.stdout, re.MULTILINE)
  assert found and float(found[1]) > 50, done.stdout + done.stderr  # chance is 10 %
