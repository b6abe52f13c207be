"""Depth scans of the real decoder keep O(L) memory; what does not fit together is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.models import depth
from resjax.testing import toy
from resjax.testing.compare import assert_close
from tests.helpers import decoders, walks


@walks.names("block_attn_res", among=("attn_res", "block_attn_res"))
@pytest.mark.release
def test_twice_the_layers_take_twice_the_memory(name):
  bytes_24, bytes_48 = (
    {remat: decoders.training_bytes(name, remat, n) for remat in depth.REMAT} for n in (24, 48)
  )
  for remat in depth.REMAT:
    assert bytes_48[remat] <= 2.2 * bytes_24[remat], remat
  stream = 256 * 64 * 4
  assert 24 * stream < bytes_24["full"] < bytes_24["dots"] < bytes_24["none"]


def test_the_embedding_is_kept_once_and_not_once_per_layer():
  stream = 256 * 64 * 4
  standard, x0 = (decoders.training_bytes(name, "full", 24) for name in ("standard", "x0_residual"))
  assert x0 - standard < 8 * stream


@walks.names("denseformer", among=("denseformer", "deep_cross_attention", "muddformer"))
def test_tables_of_all_layers_are_kept_once_and_not_once_per_layer(name):
  made = toy.build(name, {})

  def kept(layers, x):
    return jax.vjp(functools.partial(depth.run, made, branch=toy.branch, remat="full"), layers, x)[
      1
    ]

  leaves = jax.tree.leaves(jax.eval_shape(kept, toy.layers(), jnp.asarray(toy.embeddings())))
  assert len(leaves) > toy.L
  assert not [a.shape for a in leaves if a.shape[:1] == a.shape[1:2] == (toy.L,)]
  assert not [a.shape for a in leaves if a.shape[:2] == (toy.L, toy.L + 1)]


@pytest.mark.parametrize("remat", ["none", "full"])
@walks.names("denseformer", among=("standard", "denseformer", "block_attn_res"))
def test_loops_that_are_not_compiled_have_the_same_gradients(name, remat):
  made = toy.build(name, {})

  def total(layers, x):
    return (depth.run(made, layers, x, toy.branch, remat=remat) ** 2).sum()

  arguments = toy.layers(), jnp.asarray(toy.embeddings())
  want = jax.grad(total)(*arguments)
  with jax.disable_jit():
    assert_close(jax.grad(total)(*arguments), want, 1e-5)


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("name", ["standard", "gate", "attn_res", "block_attn_res"])
def test_wrong_number_of_layers_is_refused(name, unroll):
  made = toy.build(name, {}, num_layers=4)
  with pytest.raises(ValueError, match="has 5 layers, its combinator 4"):
    depth.run(made, toy.layers(), jnp.asarray(toy.embeddings()), toy.branch, unroll=unroll)


def test_unknown_remat_is_refused():
  with pytest.raises(ValueError, match=r"remat='half' .*is not known; allowed: none, dots, full"):
    toy.run(toy.build("standard", {}), toy.layers(), toy.embeddings(), remat="half")


ALL = ("standard", "attn_res", "block_attn_res")


@walks.names("block_attn_res", among=ALL, others=pytest.mark.slow)
def test_context_reaches_every_branch_and_so_do_its_gradients(name):
  made = toy.build(name, {})
  layers, x = toy.layers(), jnp.asarray(toy.embeddings())

  def branch(layer, site, views, context):
    normed, out = toy.branch(layer, site, views)
    return normed, out * context["scale"] + context["ids"]

  def total(scale, **options):
    context = {"scale": scale, "ids": jnp.arange(toy.D), "nothing": None}
    return jnp.sum(depth.run(made, layers, x, branch, context=context, **options) ** 2)

  scale = jnp.asarray(np.linspace(0.5, 1.5, toy.D), jnp.float32)
  want = jax.jit(jax.value_and_grad(functools.partial(total, unroll=True)))(scale)
  got = jax.jit(jax.value_and_grad(total))(scale)
  assert_close(got, want, 1e-5)
  assert np.abs(want[1]).min() > 0.1


@pytest.mark.parametrize("name", ["standard", "attn_res", "block_attn_res"])
@pytest.mark.slow
def test_what_branches_keep_is_stacked_over_layers(name):
  made = toy.build(name, {"layers_per_block": 2} if name == "block_attn_res" else {})
  layers, x = toy.layers(), jnp.asarray(toy.embeddings())

  def branch(layer, site, views, context):
    normed, out = toy.branch(layer, site, views)
    return normed, out, None if site == "mlp" else {"out": out, "gain": layer[site]["gain"]}

  def keep(visits, context):
    return {visit.site: visit.kept[0] for visit in visits}

  def run(layers, **options):
    last, kept = depth.run_layers(made, layers, x, branch, keep, **options)
    return made.final(last.state), kept, made.next_cache(last.state)

  (y, kept, cache), want = jax.jit(run)(layers), run(layers, unroll=True)
  assert cache is None and kept["mlp"] is None
  assert_close((y, kept), want[:2], 1e-5)
  np.testing.assert_array_equal(kept["attention"]["gain"], layers["attention"]["gain"])
  assert kept["attention"]["out"].shape == (toy.L, *x.shape)
  np.testing.assert_allclose(y, toy.compiled_by_hand(made, layers, x), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["standard", "block_attn_res"])
def test_what_layers_hand_on_reaches_the_next_and_so_do_its_gradients(name):
  made = toy.build(name, {"layers_per_block": 2} if name == "block_attn_res" else {})
  layers, x = toy.layers(), jnp.asarray(toy.embeddings())

  def branch(layer, site, views, handed):
    normed, out = toy.branch(layer, site, views)
    return normed, out + handed, None

  def take(layer, visits, handed):
    return handed / 2 + layer["mlp"]["gain"] * visits[0].out

  def scanned(layers, x):
    relay = depth.Relay(x, lambda context, handed: handed, take)
    last, _ = depth.run_layers(made, layers, x, branch, relay=relay)
    return jnp.sum(made.final(last.state) ** 2)

  def by_hand(layers, x):
    state, handed = made.init(x), x
    for i in range(toy.L):
      row, outs = jax.tree.map(lambda leaf, i=i: leaf[i], layers), []
      for site in made.sites:
        views, tape = made.read(state, i, site)
        normed, out = toy.branch(row, site, views)
        state = made.write(state, i, site, out + handed, normed=normed, tape=tape)
        outs.append(out + handed)
      handed = handed / 2 + row["mlp"]["gain"] * outs[0]
    return jnp.sum(made.final(state) ** 2)

  got, want = (jax.jit(jax.value_and_grad(f, (0, 1)))(layers, x) for f in (scanned, by_hand))
  assert_close(got, want, 2e-5)


@pytest.mark.parametrize("name", ["standard", "attn_res", "block_attn_res"])
def test_one_layer(name):
  options = {"layers_per_block": 1} if name == "block_attn_res" else {}
  made = toy.build(name, options, num_layers=1)
  layers, x = toy.layers(num_layers=1), jnp.asarray(toy.embeddings())
  np.testing.assert_allclose(
    toy.run(made, layers, x), toy.compiled_by_hand(made, layers, x), rtol=0, atol=1e-5
  )
