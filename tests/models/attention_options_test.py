"""short_swa and value_residual: equations in float64 numpy, gradients, init, refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.models.config import ShortSWAConfig
from resjax.testing.compare import assert_close
from tests.helpers import decoders, reference, walks

BOTH = {"short_swa": ShortSWAConfig(window=3, num_heads=2), "value_residual": "learned"}
LENGTH = 7


def in_numpy(p, config, tokens):
  """Final hidden states of a llama-style decoder with learned positions, standard residuals."""

  def rms(x, gain):
    return reference.rms(x, config.norm_eps) * gain["scale"]

  def attend(q, k, v, num_heads, num_kv_heads, window):
    q, k, v = (
      a.reshape(*a.shape[:2], n, -1)
      for a, n in ((q, num_heads), (k, num_kv_heads), (v, num_kv_heads))
    )
    out = reference.causal_attention(q, k, v, np.ones(tokens.shape), window)
    return out.reshape(*out.shape[:2], -1)

  x = p["embed"]["embedding"][tokens] + p["embed"]["positions"][: tokens.shape[1]]
  for layer in range(config.num_layers):
    row = jax.tree.map(lambda a, i=layer: a[i], p["layers"])
    for site in ("short_swa", "attention", "mlp"):
      if site not in row:
        continue
      n, w = rms(x, row["norms"][site]["x"]), row[site]
      if site == "mlp":
        gate = n @ w["gate_proj"]["kernel"]
        hidden = gate / (1 + np.exp(-gate)) * (n @ w["up_proj"]["kernel"])
        x = x + hidden @ w["down_proj"]["kernel"]
        continue
      q, k, v = (n @ w[f"{name}_proj"]["kernel"] for name in "qkv")
      if site == "short_swa":
        heads = config.short_swa.num_heads
        out = attend(q, k, v, heads, heads, config.short_swa.window)
      else:
        if layer == 0:
          first = v
        elif config.value_residual == "learned":
          own, other = p["value_weights"][layer - 1]
          v = own * v + other * first
        elif config.value_residual == "fixed":
          v = (v + first) / 2
        out = attend(q, k, v, config.num_heads, config.num_kv_heads, None)
      x = x + out @ w["o_proj"]["kernel"]
  return rms(x, p["final_norm"])


def example(**changes):
  config = decoders.config("llama", positions="learned", **changes)
  model = decoders.decoder(config)
  parameters = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(model)))
  return config, model, parameters, np.asarray(decoders.tokens(config, length=LENGTH))


@pytest.mark.parametrize("changes", [{"value_residual": "fixed"}, BOTH])
def test_numpy(changes):
  config, model, parameters, tokens = example(**changes)
  assert_close(jax.jit(model)(tokens), in_numpy(parameters, config, tokens), 1e-5)


@pytest.mark.parametrize("depth, remat", [("scan", "none"), ("scan", "full")])
@pytest.mark.slow
def test_gradients_reach_the_first_values_through_all_layers(depth, remat):
  config, model, parameters, tokens = example(**BOTH, depth=depth, remat=remat)
  graphdef, state = nnx.split(model)
  d = np.random.default_rng(0).normal(size=(*tokens.shape, config.d_model))

  def total(state):
    return jnp.sum(nnx.merge(graphdef, state)(tokens) * d)

  gradients = nnx.to_pure_dict(jax.jit(jax.grad(total))(state))

  def slope(array, index):
    values = []
    for step in (1e-5, -1e-5):
      array[index] += step
      values.append(np.sum(in_numpy(parameters, config, tokens) * d))
      array[index] -= step
    return (values[0] - values[1]) / 2e-5

  for path, places in (
    (("layers", "attention", "v_proj", "kernel"), [(0, 0, 0), (0, 3, 5), (0, 15, 7), (2, 1, 2)]),
    (("layers", "short_swa", "v_proj", "kernel"), [(0, 2, 3), (1, 15, 15)]),
    (("layers", "short_swa", "o_proj", "kernel"), [(0, 5, 6)]),
    (("value_weights",), [(0, 0), (0, 1), (1, 0), (1, 1)]),
  ):
    got, array = (functools.reduce(dict.get, path, tree) for tree in (gradients, parameters))
    want = [slope(array, place) for place in places]
    np.testing.assert_allclose([got[place] for place in places], want, rtol=1e-3, atol=1e-3)


@walks.names("block_attn_res", among=("attn_res", "block_attn_res"))
@pytest.mark.slow
def test_gradients_of_growing_states_are_those_of_the_loop(name):
  config = decoders.config("llama", name, **BOTH)
  graphdef, state = nnx.split(decoders.decoder(config))
  tokens = decoders.tokens(config, length=LENGTH)

  def total(state, depth):
    model = nnx.merge(graphdef, state)
    model.config = decoders.config("llama", name, **BOTH, depth=depth)
    return jnp.mean(model.logits(model(tokens)) ** 2)

  scan, loop = (
    jax.jit(jax.value_and_grad(functools.partial(total, depth=depth)))(state)
    for depth in ("scan", "loop")
  )
  assert_close(scan, loop, 1e-5)


@pytest.mark.parametrize("style", decoders.STYLES)
def test_a_fresh_short_swa_changes_nothing(style):
  tokens = decoders.tokens(decoders.config())
  short = ShortSWAConfig(window=4)
  plain = decoders.decoder(decoders.config(style), random=False)
  added = decoders.decoder(decoders.config(style, short_swa=short), random=False)
  np.testing.assert_array_equal(jax.jit(added)(tokens), jax.jit(plain)(tokens))
  assert not added.layers.short_swa.o_proj.kernel[...].any()
  short = ShortSWAConfig(window=4, zero_init=False)
  other = decoders.decoder(decoders.config(style, short_swa=short), random=False)
  assert np.abs(other(tokens) - plain(tokens)).max() > 0.1


def test_parameters_by_hand():
  def count(**changes):
    model = decoders.decoder(decoders.config("llama", **changes), random=False)
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))

  short = 3 * (4 * 16 * 16 + 16)  # four projections and a norm per layer
  assert count(**BOTH) - count() == short + 2 * 2
  assert count(value_residual="fixed") == count()


@pytest.mark.parametrize("name", combinators.names())
def test_every_combinator_takes_the_site(name):
  config = decoders.config("llama", name, **BOTH)
  model = nnx.eval_shape(lambda: decoders.decoder(config, random=False))
  assert model.combinator.sites == ("short_swa", "attention", "mlp")
  assert set(model.layers.norms) == set(model.combinator.sites)


def test_one_layer_has_its_own_values():
  changes = {"num_layers": 1, "positions": "learned"}
  tokens = decoders.tokens(decoders.config())
  plain = decoders.decoder(decoders.config(**changes))
  for kind in ("learned", "fixed"):
    mixed = decoders.decoder(decoders.config(**changes, value_residual=kind))
    np.testing.assert_array_equal(mixed(tokens), plain(tokens))


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"value_residual": "all"}, "value_residual='all' must be one of none, learned, fixed"),
    ({"short_swa": ShortSWAConfig(-1)}, "short_swa.window=-1 must be 0 or positive"),
    ({"short_swa": ShortSWAConfig(2, -2)}, "short_swa.num_heads=-2 must be 0 or positive"),
    ({"short_swa": ShortSWAConfig(2, 3)}, "short_swa.num_heads=3 must divide d_model=16"),
    ({"short_swa": ShortSWAConfig(2, 16)}, "short_swa.num_heads=16 must divide .* of even width"),
  ],
)
def test_options_out_of_range_are_refused(changes, message):
  with pytest.raises(ValueError, match=f"config.model.{message}"):
    decoders.config(**changes)
