"""Gated Residual against the layers and the last mixer of transformers' Qwen3.8-Flash-Next."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from tests.helpers import published

SITES = {
  "attention": ("attn_hyper_connection", "self_attn"),
  "mlp": ("mlp_hyper_connection", "mlp"),
}


@published.both("qwen4_exp")
def test_reads_writes_and_output_are_those_of_qwen4_exp(numbers):
  check(numbers(), eps=1e-3)


@pytest.mark.parametrize("eps, moved", [(1e-6, 0.0), (1e-3, 1e-6)])
def test_eps_and_stored_gains_are_seen(eps, moved):
  arrays = dict(published.kept("qwen4_exp"))
  arrays["3.hc_norm.weight"] = arrays["3.hc_norm.weight"] + moved
  with pytest.raises(AssertionError):
    check(arrays, eps)


def check(arrays, eps):
  with jax.enable_x64(True):
    made = build(arrays, eps)
    state = made.init(jnp.asarray(arrays["x"]))
    for layer, streams in enumerate(arrays["streams"]):
      for site, (_, branch) in SITES.items():
        views, tape = made.read(state, layer, site)
        out = jnp.tanh(views["x"] @ arrays[f"{layer}.{branch}.weight"].T)
        state = made.write(state, layer, site, out, tape=tape)
      want = np.moveaxis(streams.reshape(*streams.shape[:2], *folded(made)), 2, 0)
      np.testing.assert_allclose(state, want, rtol=0, atol=1e-9)
    np.testing.assert_allclose(made.final(state), arrays["y"], rtol=0, atol=1e-9)


def folded(made):
  return made.num_streams, made.d_model


def build(arrays, eps):
  """The combinator with the weights of the layers; a published matrix is [d_out, d_in]."""
  num_layers, *_, width = len(arrays["streams"]), *arrays["x"].shape
  rank, features = arrays["3.input_mix_weight_down.weight"].shape
  made = combinators.build(
    "gated_residual", num_layers=num_layers, d_model=width, num_streams=features // width,
    rank=rank, eps=eps, rngs=nnx.Rngs(0),
  )  # fmt: skip

  def weights(path):
    gain, down, up = (arrays[f"{path}{name}.weight"] for name in NAMES[:3])
    up = up.T.reshape(rank, *folded(made))
    return {
      "gain": 1 + gain.reshape(folded(made)),
      "down": down.T.reshape(*folded(made), rank),
      "up": np.moveaxis(up, 1, 0),
    }

  def site(layer, name):
    path = f"{layer}.{SITES[name][0]}."
    inject = arrays[f"{path}{NAMES[3]}.weight"].T
    return weights(path) | {"inject": inject.reshape(*folded(made), -1)}

  rows = [[site(layer, name) for name in made.sites] for layer in range(num_layers)]
  params = {
    key: np.array([[row[key] for row in layer] for layer in rows]) for key in rows[0][0]
  } | {f"final_{key}": value for key, value in weights(f"{num_layers}.").items()}
  state = nnx.state(made)
  assert jax.tree.map(jnp.shape, nnx.to_pure_dict(state)) == jax.tree.map(jnp.shape, params)
  nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, params))
  nnx.update(made, state)
  return made


NAMES = ("hc_norm", "input_mix_weight_down", "input_mix_weight_up", "block_inject_weight")
