"""What `depth_weights` says of a read is what the read does."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.combinators.base import OUTPUT
from resjax.testing import toy
from tests.helpers.reference import rms
from tests.helpers.systems import CASES

LAYERS, X = toy.layers(), jnp.asarray(toy.embeddings())
MIXED = ("attn_res", "block_attn_res", "denseformer", "elc", "muddformer")
ADDED = ("delta_attn_res", "delta_block_attn_res")
PROJECTED = ("depth_attention",)
OTHERS = {"num_heads", "null_source", "output_gate"}  # a mean over heads is no read; gates scale it
RULES = ("attn_res", "block_attn_res")  # whose options change how sources are weighed

QUICK = ("block_attn_res-layers_per_block=2", "denseformer-dilation=2-period=2")


def cases(*names):
  """One case of every name, all of `RULES`, and those of `QUICK`."""
  named = [case for case in CASES if case.name in names]
  first = {case.name: case for case in reversed(named)}.values()
  return tuple(c for c in named if c in first or c.name in RULES or str(c) in QUICK)


class Read(NamedTuple):
  weights: np.ndarray  # [N, B, T]
  sources: np.ndarray  # what is weighed [n, B, T, D]
  read: np.ndarray  # what comes of it [B, T, D]


@functools.cache
def readers(case):
  """(layer, site) -> `Read` of all that read sources, by a loop by hand."""
  made = toy.build(case.name, case.options)
  return jax.tree.map(np.asarray, jax.jit(functools.partial(reads, case, made))(X))


def reads(case, made, x):
  branch = functools.partial(toy.branch, pre_norm=made.pre_norm)
  shape, found, state = (len(made.source_names()), *x.shape[:2]), {}, made.init(x)

  def look(layer, site, read):
    weights = made.depth_weights(state, layer, site)
    if weights is None:
      return
    sources = list(state.sources.recent)
    if case.name == "block_attn_res" and site != OUTPUT:
      sources.append(state.running[0])  # the sum of the running block
    if case.name in ADDED:
      running = state.running
      read = read - (running if case.name == "delta_attn_res" else running[0])
    found[layer, site] = Read(jnp.broadcast_to(weights, shape), jnp.stack(sources), read)

  for layer in range(made.num_layers):
    row = jax.tree.map(lambda leaf, i=layer: leaf[i], LAYERS)
    for site in made.sites:
      views, tape = made.read(state, layer, site)
      look(layer, site, views["x"])
      normed, out = branch(row, site, views, None)
      state = made.write(state, layer, site, out, normed=normed, tape=tape)
  look(made.num_layers, OUTPUT, made.final(state))
  return found


def walk(chosen):
  """One case of `QUICK`, the others wait for `release`."""
  return pytest.mark.parametrize(
    "case",
    [
      pytest.param(case, id=str(case), marks=() if str(case) in QUICK else pytest.mark.release)
      for case in chosen
    ],
  )


@walk(cases(*MIXED, *ADDED, *PROJECTED))
def test_weights_of_a_softmax_add_up_and_later_sources_have_none(case):
  found = readers(case)
  assert found
  for place, one in found.items():
    later = one.weights[len(one.sources) :]
    assert (later == 0).all() or case.options.get("null_source"), place
    if case.name not in ("denseformer", "muddformer") and "weights" not in case.options:
      np.testing.assert_allclose(one.weights.sum(axis=0), 1, rtol=1e-5, err_msg=str(place))


@walk([case for case in cases(*MIXED, *ADDED) if not OTHERS & set(case.options)])
def test_weighted_sources_are_what_is_read(case):
  for place, one in readers(case).items():
    values = np.float64(one.sources)
    if case.options.get("value_norm") and np.sum(one.weights[:, 0, 0] > 0) > 1:
      values = rms(values, 1e-6)
    mixed = np.einsum("nbt,nbtd->btd", one.weights[: len(values)], values)
    np.testing.assert_allclose(mixed, one.read, atol=3e-6, rtol=1e-5, err_msg=str(place))


@pytest.mark.slow
def test_a_null_source_comes_last():
  case = next(case for case in CASES if case.options.get("null_source"))
  assert toy.build(case.name, case.options).source_names()[-1] == "null"
  for one in readers(case).values():
    assert (one.weights[len(one.sources) : -1] == 0).all() and (one.weights[-1] > 0).all()


def test_systems_that_weigh_no_sources_have_no_weights():
  made = toy.build("standard", {})
  assert made.source_names() == () and made.depth_weights(X, 0, "mlp") is None
