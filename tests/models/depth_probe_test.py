"""Probes see in a scan what a loop by hand sees; the last position is the output."""

import functools

import jax
import jax.numpy as jnp

from resjax.combinators.base import OUTPUT
from resjax.models import depth
from tests.helpers import fast, toy, walks
from tests.helpers.compare import assert_close
from tests.helpers.systems import CASES

LAYERS, X = toy.layers(), jnp.asarray(toy.embeddings())
SCANNED = tuple(case for case in CASES if not case.loop_only)


def probe(visits, seen):
  found = {}
  for visit in visits:
    found[visit.site] = {
      "read": visit.views["x"] * seen["scale"],
      "out": visit.out,
      "closed": visit.closed(),
      "weights": visit.depth_weights(),
    }
  return found


def probed(made, layers, x, **options):
  branch = functools.partial(toy.branch, pre_norm=made.pre_norm)

  def keeping(*arguments):
    return *branch(*arguments), None

  seen = {"scale": jnp.asarray(2.0)}
  return depth.run_probed(made, layers, x, keeping, probe, seen=seen, **options)


def by_hand(made):
  """The same by the loop of the protocol's docstring."""
  branch = functools.partial(toy.branch, pre_norm=made.pre_norm)
  state, found = made.init(X), []
  for layer in range(made.num_layers):
    row, here = jax.tree.map(lambda leaf, i=layer: leaf[i], LAYERS), {}
    for site in made.sites:
      views, tape = made.read(state, layer, site)
      weights = made.depth_weights(state, layer, site)
      normed, out = branch(row, site, views, None)
      state = made.write(state, layer, site, out, normed=normed, tape=tape)
      closed = made.final_after(state, layer, site)
      here[site] = {"read": 2 * views["x"], "out": out, "closed": closed, "weights": weights}
    found.append(here)
  stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *found)
  return made.final(state), made.depth_weights(state, made.num_layers, OUTPUT), stacked


@functools.cache
def expected(case):
  made = toy.build(case.name, case.options)
  return made, by_hand(made)


@walks.one_case_each(all_of=("block_attn_res", "x0_residual", "elc", "deep_cross_attention"))
def test_closed_after_the_last_site_is_the_output(case):
  made, (y, _, found) = expected(case)
  assert_close(found[made.sites[-1]]["closed"][-1], y, 1e-6)


@walks.one_case_each(SCANNED)
def test_probes_of_a_scan_see_what_a_loop_sees(case):
  made, want = expected(case)
  got = fast.jit(lambda x: probed(made, LAYERS, x))(X)
  assert_close(got, want, 1e-5)


@walks.first_cases()
def test_probes_of_the_python_loop_see_what_a_loop_by_hand_sees(case):
  made, want = expected(case)
  assert_close(probed(made, LAYERS, X, unroll=True), want, 1e-5)
