"""Every combinator where NNX modules are plain trees, not graphs."""

import os
import subprocess
import sys
import textwrap

import pytest

TREE_MODE = """
  import jax, jax.numpy as jnp, numpy as np
  from flax import config, nnx
  from resjax import combinators
  from resjax.testing import toy

  jax.config.update("jax_enable_x64", True)  # rounding in float32 depends on the processor
  assert config.nnx_graph_mode is False
  layers, x = toy.layers(3, dtype=np.float64), jnp.asarray(toy.embeddings(np.float64))
  for name in combinators.names():
    made = toy.build(name, {}, num_layers=3)
    want, wants = toy.jitted(toy.by_hand, made, layers, x)
    got, gots = toy.jitted(toy.run, made, layers, x)
    pairs = zip(jax.tree.leaves((got, gots)), jax.tree.leaves((want, wants)), strict=True)
    for a, b in pairs:
      np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * max(1, abs(b).max()), err_msg=name)
  print("checked")
"""


@pytest.mark.release
def test_without_nnx_graph_mode():
  env = {**os.environ, "NNX_GRAPH_MODE": "false"}
  command = [sys.executable, "-c", textwrap.dedent(TREE_MODE)]
  done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
  assert done.stdout == "checked\n", done.stderr[-3000:]
