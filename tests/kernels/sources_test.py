"""Windows of depth sources."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.kernels.depth_attention import Sources, make_bank

COUNTS = range(1, 8)
ALL = np.arange(5, dtype=np.float32)[:, None].repeat(3, axis=1)  # source j is [j, j, j]
bank_of = jax.jit(make_bank, static_argnames="size")


def held(sources):
  """Index of every source that is there, in order."""
  slots = np.concatenate(sources.groups())
  return slots[np.asarray(sources.valid())][:, 0].tolist()


@jax.jit
def windows(sources):
  """The latest sources for every count, traced as in a scan."""
  return {count: sources.latest(count) for count in COUNTS}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("in_bank", [None, 1, 3, 5])
@pytest.mark.parametrize("spare", [0, 1, 4])
def test_latest_sources(count, in_bank, spare):
  if in_bank is None:
    sources = Sources(tuple(ALL))
  else:
    bank = bank_of(tuple(ALL[:in_bank]), size=in_bank + spare)
    sources = Sources(tuple(ALL[in_bank:]), bank, in_bank)
  want = list(range(5))[-count:]
  assert held(sources.latest(count)) == want
  traced = windows(sources)[count]
  assert held(traced) == want
  assert sum(map(len, traced.groups())) <= count


@pytest.mark.parametrize("in_bank", [None, 1, 3, 5])
def test_sources_counted_from_the_end(in_bank):
  bank = None if in_bank is None else bank_of(tuple(ALL[:in_bank]), size=in_bank + 2)
  sources = Sources(tuple(ALL[in_bank or 0 :]), bank, in_bank or 0)
  found = [float(sources.from_end(back)[0]) for back in range(7)]
  assert found == [4, 3, 2, 1, 0, 0, 0]  # beyond the first one it is the first one


def test_gradient_reaches_the_window_only():
  def total(bank):
    window = Sources(bank=bank, num_valid=4).latest(2)
    return jnp.sum(jnp.concatenate(window.groups()))

  gradient = jax.jit(jax.grad(total))(ALL)
  np.testing.assert_array_equal(np.asarray(gradient)[:, 0], [0, 0, 1, 1, 0])


@pytest.mark.parametrize("in_bank", [None, 1, 3])
def test_rows_of_slots_in_the_order_of_sources_are_those_in_the_order_of_slots(in_bank):
  count = 4  # of five, the last one is not there yet
  recent = tuple(ALL[in_bank or 0 : count])
  bank = None if in_bank is None else bank_of(tuple(ALL[:in_bank]), size=5)
  sources = Sources(recent, bank, in_bank or 0)
  rows = np.arange(1.0, 6.0, dtype=np.float32)[:, None]
  ordered = jax.jit(lambda s, rows: s.in_source_order(s.in_slot_order(rows), 5))(sources, rows)
  np.testing.assert_array_equal(np.asarray(ordered)[:, 0], [1, 2, 3, 4, 0])
