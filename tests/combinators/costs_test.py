"""Costs that are derived from a combinator's pytrees and its trace, against counts by hand."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from resjax import combinators
from resjax.combinators import Standard, registry
from tests.helpers.systems import COSTS
from tests.helpers.systems.common import D


def build(key, d_model):
  name, *options = key
  sizes = {"num_layers": 2, "d_model": d_model}
  return nnx.eval_shape(lambda: registry.get(name)(**sizes, rngs=nnx.Rngs(0), **dict(options)))


def at(count, width):
  return int((count + 0 * D)(width))


def keys():
  """Every key of `COSTS`; those that are not the first of their name are slow."""
  first = {key[0]: key for key in reversed(COSTS)}
  marks = {key: () if first[key[0]] == key else pytest.mark.slow for key in COSTS}
  return [pytest.param(key, id=str(key), marks=mark) for key, mark in marks.items()]


@pytest.mark.parametrize("key", keys())
def test_costs_counted_by_hand(key):
  by_hand, unseen = COSTS[key], set()
  kept = by_hand.coefficients
  for width in (24, 48, 96):
    made = build(key, width)
    assert made.num_parameters() == at(by_hand.parameters, width)
    assert made.state_bytes_per_token(jnp.float32) == 4 * (at(by_hand.state, width) + kept)
    unseen.add(made.flops_per_token() - at(by_hand.flops, width))
  assert made.state_bytes_per_token(jnp.bfloat16) == 2 * at(by_hand.state, width) + 4 * kept
  assert len(unseen) == 1 and min(unseen) >= 0


def test_every_registered_name_has_costs():
  assert {key[0] for key in COSTS} == set(combinators.names())


def test_costs_do_not_depend_on_mesh_kernel_or_values():
  sizes = {"num_layers": 2, "d_model": 24, "rngs": nnx.Rngs(0)}
  made = combinators.build("attn_res", **sizes)
  chosen = combinators.build("attn_res", **sizes, implementation="mosaic_tpu")
  abstract = build(("attn_res",), 24)
  assert made.flops_per_token() == chosen.flops_per_token() == abstract.flops_per_token()


class Opaque(Standard):
  """Calls back into Python, where nobody can count."""

  def read(self, state, layer, site):
    like = jax.ShapeDtypeStruct(state.shape, state.dtype)
    return {"x": jax.pure_callback(lambda x: x, like, state)}, None


def test_what_cannot_be_counted_is_no_zero():
  made = Opaque(num_layers=2, d_model=8)
  with pytest.raises(ValueError, match=r"runs 'pure_callback'.*override flops_per_token"):
    made.flops_per_token()
  assert made.state_bytes_per_token(jnp.float32) == 8 * 4


class Looped(Standard):
  """Doubles what it reads three times, in a scan, and then or in a branch adds one."""

  def read(self, state, layer, site):
    x = jax.lax.fori_loop(0, 3, lambda _, x: 2 * x, state)
    return {"x": jax.lax.cond(x[0, 0, 0] > 0, lambda x: x, lambda x: (1 + x) * x, x)}, None

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    return normed["x"] + out


def test_loops_count_every_step_and_branches_the_dearest():
  made = Looped(num_layers=2, d_model=8, sites=("mlp",))
  assert made.flops_per_token() == 2 * (3 + 2 + 1) * 8


def test_work_that_all_tokens_share_does_not_count():
  class Shared(Standard):
    def read(self, state, layer, site):
      scale = jnp.sum(jnp.arange(100.0) ** 2)
      return {"x": state}, scale

    def write(self, state, layer, site, out, *, normed=None, tape=None):
      return state + tape * out

  assert Shared(num_layers=1, d_model=8, sites=("mlp",)).flops_per_token() == 2 * 8
