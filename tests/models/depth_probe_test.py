"""Probes see in a scan what a loop by hand sees; the last position is the output."""

import functools

import jax
import jax.numpy as jnp
import pytest

from resjax.combinators.base import OUTPUT
from resjax.models import depth
from resjax.testing import toy
from resjax.testing.compare import assert_close

L = 3
LAYERS, X = toy.layers(L), jnp.asarray(toy.embeddings())
# What is left out where the layers end early, and what weighs sources; name, options.
OPTIONS = [
  ("attenuation", {"layers": (0, -1), "scope": "layer"}),
  ("attn_res", {}),
  ("block_attn_res", {"layers_per_block": 2}),
  ("block_attn_res", {"layers_per_block": 2, "rms_block": True, "num_heads": 2}),
  ("block_attn_res", {"layers_per_block": 2, "two_phase": "always"}),
  ("deep_cross_attention", {}),
  ("deep_cross_attention", {"last": 1}),
  ("deep_delta", {"value_width": 2, "compressor": "token"}),
  ("delta_attn_res", {"null_source": True}),
  ("delta_block_attn_res", {"layers_per_block": 2, "null_source": True}),
  ("denseformer", {"period": 2}),
  ("depth_attention", {"window": 2}),
  ("elc", {"variant": "zero", "weighted_output": True}),
  ("elc", {"variant": "base"}),
  ("hyper_connections", {}),
  ("laurel", {"variant": "rw+lr+pa"}),
  ("muddformer", {}),
  ("muddformer", {"pre_post_norm": True}),
  ("unet_skips", {}),
  ("unet_skips", {"mix_embedding": True}),
  ("x0_residual", {"backout": True}),
]
QUICK = ("attenuation-(0, -1)-layer", "block_attn_res-2", "elc-zero-True", "x0_residual-True")


def walk(systems):
  marks = {False: pytest.mark.release, True: ()}
  names = ["-".join([name, *map(str, options.values())]) for name, options in systems]
  marked = [
    pytest.param(*one, id=name, marks=marks[name in QUICK])
    for name, one in zip(names, systems, strict=True)
  ]
  return pytest.mark.parametrize("name, options", marked)


def probe(visits, seen):
  found = {}
  for visit in visits:
    found[visit.site] = {
      "read": visit.views()["x"] * seen["scale"],
      "out": visit.out,
      "closed": visit.closed(),
      "weights": visit.depth_weights(),
    }
  return found


def probed(made, layers, x, **options):
  branch = functools.partial(toy.branch, pre_norm=made.pre_norm)
  seen = {"scale": jnp.asarray(2.0)}
  last, found = depth.run_layers(made, layers, x, branch, probe, context=seen, **options)
  state = last.state
  return made.final(state), made.depth_weights(state, made.num_layers, OUTPUT), found


def by_hand(made, x):
  """The same by the loop of the protocol's docstring."""
  branch = functools.partial(toy.branch, pre_norm=made.pre_norm)
  state, found = made.init(x), []
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


def check(name, options, **how):
  made = toy.build(name, options, num_layers=L)
  want = jax.jit(functools.partial(by_hand, made))(X)
  got = jax.jit(lambda x: probed(made, LAYERS, x, **how))(X)
  assert_close(got, want, 1e-5)
  output, _, found = want
  assert_close(found[made.sites[-1]]["closed"][-1], output, 1e-6)


@walk(OPTIONS)
def test_probes_of_a_scan_see_what_a_loop_by_hand_sees(name, options):
  check(name, options)


@walk([("standard", {}), ("muddformer", {"row_sizes": "faithful"})])
def test_probes_of_the_python_loop_see_what_a_loop_by_hand_sees(name, options):
  check(name, options, unroll=True)
