"""Windows of depth sources."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.kernels.depth_attention import Sources, make_bank

ALL = np.arange(5, dtype=np.float32)[:, None].repeat(3, axis=1)  # source j is [j, j, j]


def held(sources):
  """Index of every source that is there, in order."""
  slots = np.concatenate(sources.groups())
  return slots[np.asarray(sources.valid())][:, 0].tolist()


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("in_bank", [None, 1, 3, 5])
@pytest.mark.parametrize("spare", [0, 1, 4])
def test_latest_sources(count, in_bank, spare):
  if in_bank is None:
    sources = Sources(tuple(ALL))
  else:
    bank = make_bank(tuple(ALL[:in_bank]), in_bank + spare)
    sources = Sources(tuple(ALL[in_bank:]), bank, in_bank)
  want = list(range(5))[-count:]
  assert held(sources.latest(count)) == want
  traced = jax.jit(lambda sources: sources.latest(count))(sources)  # as in a scan
  assert held(traced) == want
  assert sum(map(len, traced.groups())) <= count


@pytest.mark.parametrize("in_bank", [None, 1, 3, 5])
def test_sources_counted_from_the_end(in_bank):
  bank = None if in_bank is None else make_bank(tuple(ALL[:in_bank]), in_bank + 2)
  sources = Sources(tuple(ALL[in_bank or 0 :]), bank, in_bank or 0)
  found = [float(sources.from_end(back)[0]) for back in range(7)]
  assert found == [4, 3, 2, 1, 0, 0, 0]  # beyond the first one it is the first one


def test_gradient_reaches_the_window_only():
  def total(bank):
    window = Sources(bank=bank, num_valid=4).latest(2)
    return jnp.sum(jnp.concatenate(window.groups()))

  gradient = jax.grad(total)(jnp.asarray(ALL))
  np.testing.assert_array_equal(gradient[:, 0], [0, 0, 1, 1, 0])


@pytest.mark.parametrize("in_bank", [None, 1, 3])
def test_rows_of_slots_in_the_order_of_sources_are_those_in_the_order_of_slots(in_bank):
  count = 4  # of five, the last one is not there yet
  recent = tuple(ALL[in_bank or 0 : count])
  bank = None if in_bank is None else make_bank(tuple(ALL[:in_bank]), 5)
  sources = Sources(recent, bank, in_bank or 0)
  rows = jnp.arange(1.0, 6.0)[:, None]
  ordered = jax.jit(lambda s: s.in_source_order(s.in_slot_order(rows), 5))(sources)
  np.testing.assert_array_equal(ordered[:, 0], [1, 2, 3, 4, 0])
