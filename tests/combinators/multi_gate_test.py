"""What the gates of Multi-Gate Residuals promise: bounded streams that differ, and slow ones."""

import jax
import numpy as np
import pytest

from resjax.testing import toy

LAYERS, X = toy.layers(), toy.embeddings()
gates = pytest.mark.parametrize("gate", ["competitive", "independent"])


def run(made):
  """All states [R, B, T, D], the outputs that were written and the last read, [B, T, D] each."""
  made = jax.tree.map(np.asarray, made)  # fresh ones have weak types, moved ones have not
  return jax.tree.map(np.asarray, _run(made))


@jax.jit
def _run(made):
  outs = []

  def branch(*args, **options):
    normed, out = toy.branch(*args, **options)
    outs.append(out)
    return normed, out

  states = list(toy.states_by_hand(made, LAYERS, X, branch))
  return states, outs, made.final(states[-1])


@gates
def test_no_stream_and_no_read_is_longer_than_the_longest_output(gate):
  states, outs, read = run(toy.build("multi_gate", {"gate": gate}))
  norms = np.linalg.norm(np.stack([X, *outs]), axis=-1)  # [sources, B, T]
  for written, state in enumerate(states):
    longest = norms[: written + 1].max(axis=0) * (1 + 1e-6)
    assert (np.linalg.norm(state, axis=-1) <= longest).all(), written
  assert (np.linalg.norm(read, axis=-1) <= longest).all()
  plain = np.linalg.norm(X + sum(outs), axis=-1)
  assert (plain > longest).mean() > 0.5  # a sum of the same outputs is longer


@gates
def test_early_outputs_open_streams_that_never_are_copies(gate):
  states, outs, _ = run(toy.build("multi_gate", {"gate": gate}, random=False))
  np.testing.assert_array_equal(states[3], np.stack([X, *outs[:3]]))
  np.testing.assert_array_equal(states[2][3], np.zeros_like(X))
  last = states[-1]
  for s in range(1, 4):
    assert np.linalg.norm(last[s] - last[s - 1]) > 0.1 * np.linalg.norm(last[s])


@gates
@pytest.mark.parametrize("num_layers", [2, 12, 48])
def test_gates_start_at_a_share_that_falls_with_the_root_of_depth(gate, num_layers):
  made = toy.build("multi_gate", {"gate": gate}, num_layers=num_layers, random=False)
  state = np.stack([X, 2 * X, 3 * X, -X])
  write = jax.jit(made.write, static_argnums=(1, 2))
  moved = write(state, num_layers - 1, "mlp", np.zeros_like(X))
  moving = 2 * num_layers - 3  # of 24 sublayers 21: there a gate is σ(-3)
  share = np.sqrt(21 / moving) / (1 + np.exp(3))
  np.testing.assert_allclose(moved, (1 - share) * state, rtol=1e-5)
