"""Identities and limits of the systems that mix the outputs of earlier layers."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.testing import toy
from resjax.testing.compare import assert_close, relative_errors

LAYERS, X = toy.layers(), toy.embeddings()
DCA = "deep_cross_attention"


def values_and_gradients(made):
  return toy.jitted(toy.run, made, LAYERS, X)


def test_deep_muddformer_without_norms_is_warned_of_once():
  def make(num_layers, **options):
    sizes = {"num_layers": num_layers, "d_model": 8}

    def start():
      made = combinators.MUDDFormer(**sizes, **options, rngs=nnx.Rngs(0))
      made.init(jnp.ones((1, 8)))

    jax.eval_shape(start)

  with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("default")
    make(23)
    make(24, pre_post_norm=True)
    assert not found
    for _ in range(2):
      make(24)
  (one,) = found
  assert "diverged with 24 layers" in str(one.message) and "pre_post_norm=True" in str(one.message)


@pytest.mark.parametrize("last", [0, 2])
@pytest.mark.slow
def test_fresh_gated_cross_attention_is_nearly_standard(last):
  fresh = toy.build(DCA, {"version": 3, "last": last}, random=False)
  standard = toy.build("standard", {})
  y, of_standard = (toy.compiled_by_hand(made, LAYERS, X) for made in (fresh, standard))
  error = relative_errors(y, of_standard)[""]
  # A gate relu(w · g) has a root mean square of 0.02 / √2 for sources of unit size; reads add up.
  assert 0 < error < 0.02 * np.sqrt((toy.L + 1) / 2)


@pytest.mark.parametrize("last", [0, 2])
@pytest.mark.slow
def test_gates_at_zero_learn_nothing_and_are_version_2(last):
  made = toy.build(DCA, {"version": 3, "last": last})
  second = toy.build(DCA, {"version": 2, "last": last})
  made.query[...] = jnp.zeros_like(made.query[...])
  made.final_query[...] = jnp.zeros_like(made.final_query[...])
  second.bias[...], second.final_bias[...] = made.bias[...], made.final_bias[...]
  (y, (params, *_)), (want, (wants, *_)) = map(values_and_gradients, (made, second))
  assert_close((y, params["bias"]), (want, wants["bias"]), 1e-6)
  assert not np.any(params["query"]) and not np.any(params["final_query"])


def test_the_last_layers_are_all_layers_while_there_are_no_others():
  depth = 4
  layers = toy.layers(num_layers=depth)
  full, cut = (toy.build(DCA, {"last": last}, num_layers=depth) for last in (0, depth - 1))
  state = nnx.state(full)
  nnx.update(cut, {"query": state["query"]})
  cut.bias[...] = full.bias[...]  # no layer has more than depth - 1 outputs before it

  @functools.partial(jax.jit, static_argnums=0)
  def recent(graphdef, state):
    return [*toy.states_by_hand(nnx.merge(graphdef, state), layers, X)][-1].sources.recent

  of_full, of_cut = (recent(*nnx.split(made)) for made in (full, cut))
  x, first, *rest = of_full
  assert_close(of_cut, (x, first, *rest), 1e-6)


@pytest.mark.parametrize("dilation, period", [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_number_of_scalars_of_denseformer(dilation, period):
  made = toy.build("denseformer", {"dilation": dilation, "period": period}, num_layers=6)
  rows = [i for i in range(1, 7) if i % period == 0]
  assert made.weight.size == sum(-(-(i + 1) // dilation) for i in rows)
  if dilation == period == 1:
    assert made.weight.size == 6 * 9 // 2


@pytest.mark.parametrize("row_sizes, number", [("faithful", 8_775_709), ("stacked", 16_633_373)])
def test_parameters_of_muddformer_at_2_8b_by_hand(row_sizes, number):
  # H is 64 up to n = 15 sources, 128 up to 31, 192 up to 47; D = 2560, L = 32.
  made = nnx.eval_shape(
    lambda: combinators.build(
      "muddformer", num_layers=32, d_model=2560, rngs=nnx.Rngs(0), row_sizes=row_sizes
    )
  )
  assert made.num_parameters() == number
  assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(made))) == number


@pytest.mark.parametrize("name", ["muddformer", DCA])
def test_a_branch_that_ignores_queries_is_refused(name):
  made = toy.build(name, {})

  @jax.jit
  def before(x):
    state = made.init(x)
    return state, *made.read(state, 0, "attention")

  @jax.jit
  def after(state, views, tape, x):
    used = {view: views[view] for view in "qkv"}
    state = made.write(state, 0, "attention", x, normed=used, tape=tape)
    views, tape = made.read(state, 0, "mlp")
    return made.write(state, 0, "mlp", x, normed=views, tape=tape)

  state, views, tape = before(X)
  with pytest.raises(ValueError, match=r"'attention' is given the views q, k, v, x, .* q, k, v;"):
    made.write(state, 0, "attention", X, normed={"x": views["x"]}, tape=tape)
  after(state, views, tape, X)


def test_layers_of_different_shape_need_the_loop():
  made = toy.build("muddformer", {"row_sizes": "faithful"})
  with pytest.raises(ValueError, match=r"cannot be scanned; set config\.model\.depth='loop'"):
    toy.run(made, LAYERS, X)
  state = made.init(X)
  with pytest.raises(ValueError, match=r"is traced, but row_sizes='faithful'.*'stacked'"):
    jax.jit(lambda layer: made.read(state, layer, "attention")[0])(0)


@pytest.mark.parametrize(
  "name, options",
  [
    ("denseformer", {}),
    ("elc", {}),
    ("elc", {"weighted_output": True}),
    (DCA, {}),
    ("muddformer", {}),
    ("muddformer", {"row_sizes": "faithful"}),
  ],
  ids=str,
)
def test_one_layer(name, options):
  made = toy.build(name, options, num_layers=1)

  @jax.jit
  def both(made, layers, x):
    got = toy.run(made, layers, x, unroll=made.strategy == "loop")
    return got, toy.by_hand(made, layers, x)

  got, want = both(made, toy.layers(num_layers=1), X)
  assert_close(got, want, 1e-5)
  assert made.num_parameters() == sum(leaf.size for leaf in jax.tree.leaves(nnx.state(made)))
