import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launch.bench.kernels.take import take

READS = jnp.arange(12.0).reshape(3, 4), jnp.arange(3.0)


def test_rows_taken_one_after_another_are_slices():
  def loss(takes, reads):
    total = 0.0
    for slot in (2, 0, 1):
      if takes:
        row, reads = take(reads, slot)
      else:
        row = jax.tree.map(lambda leaf, i=slot: leaf[i], reads)
      total += (slot + 1) * jnp.sum(jnp.sin(row[0])) * jnp.cos(row[1])
    return total

  got, want = (jax.value_and_grad(lambda r, t=takes: loss(t, r))(READS) for takes in (True, False))
  jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize("slot", [0, 2])
def test_a_cotangent_replaces_what_stood_there(slot):
  _, vjp = jax.vjp(jax.jit(lambda reads: take(reads, jnp.int32(slot))), READS)
  left_there = jax.tree.map(lambda leaf: jnp.full_like(leaf, 9.0), READS)
  (d_reads,) = vjp(((jnp.ones(4), jnp.ones(())), left_there))
  for d in d_reads:
    rows = [np.unique(row).tolist() for row in np.asarray(d)]
    assert rows == [[1.0] if i == slot else [9.0] for i in range(3)]
