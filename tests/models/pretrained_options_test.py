"""What pretrained families need of a decoder: with every combinator, cached, scanned, counted.

That each option computes what its family does, tests/interop/huggingface/golden_test.py shows.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.base.sharding import Layout
from resjax.models.config import NormGateConfig, ShortSWAConfig
from resjax.models.decoder import Decoder
from resjax.models.flops import forward_flops_per_token
from resjax.models.losses import cross_entropy
from resjax.models.model_def import ModelDef
from resjax.nn.rope import Rotation
from resjax.nn.rope_scaling import RopeScaling
from resjax.testing.compare import assert_close
from tests.helpers import decoders
from tests.helpers.losses import text_loss
from tests.models.decode_test import cached_and_whole

GEMMA2 = {
  "mlp": "geglu", "post_norm": True, "windows": (3, 0), "attention_softcap": 1.5,
  "logit_softcap": 2.0, "query_pre_attn_scalar": 3.0, "embed_scale": True,
}  # fmt: skip
NEOX = {
  "norm": "layernorm", "bias": "all", "mlp": "gelu_exact", "parallel": True, "rope_fraction": 0.5,
  "rope_scaling": RopeScaling("llama3", 4.0, 1.0, 4.0, 16),
}  # fmt: skip
OLMO2 = {"pre_norm": False, "post_norm": True, "qk_norm": True, "qk_norm_over": "heads"}
ALL = GEMMA2 | {"parallel": True, "bias": "attention", "windows": (3, 0, 5), "qk_norm": True}
EXTRAS = {"short_swa": ShortSWAConfig(window=3), "value_residual": "learned"}


# Without padding, golden_test.py shows it for every family.
@pytest.mark.slow
@pytest.mark.parametrize("options", [GEMMA2, NEOX, OLMO2])
def test_cached_decoding_is_the_whole_row(options):
  assert_close(*cached_and_whole(decoders.config("llama", **options), (6, 1)), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["block_attn_res", "deep_delta", "muddformer"])
def test_cached_decoding_with_all_options(name):
  config = decoders.config("llama", name, **ALL | EXTRAS)
  assert_close(*cached_and_whole(config, (6, 1, 1, 1)), 2e-5)


@pytest.mark.parametrize("name", combinators.names())
def test_every_combinator_takes_a_parallel_site_and_post_norms(name):
  config = decoders.config("llama", name, **ALL)
  model = decoders.shapes(config)
  assert model.combinator.sites == ("parallel",)
  assert set(model.layers.norms) == set(model.layers.post_norms) == {"attention", "mlp"}
  out = nnx.eval_shape(Decoder.__call__, model, decoders.tokens(config))
  assert out.shape == (2, 12, 16)


def test_a_parallel_site_reads_once_and_adds_both_branches():
  """By hand: y = x + attention(norm x) + mlp(norm' x), layer by layer."""
  config = decoders.config("llama", parallel=True, post_norm=True, num_layers=2)
  model = decoders.drawn(config)
  tokens = decoders.tokens(config)
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  rotation = Rotation(config.layer_ropes[:1])
  place = {"segment_ids": jnp.ones_like(tokens), "positions": positions, "rotation": rotation}
  graphdef, state = nnx.split(model.layers)

  @jax.jit
  def both():
    x = model.embed(tokens, positions)
    for index in range(2):
      layer = nnx.merge(graphdef, jax.tree.map(lambda leaf, i=index: leaf[i], state))
      n = layer.norms["attention"]["x"](x)
      attended = layer.post_norms["attention"](layer.attention(n, n, n, **place)[0])
      x = x + attended + layer.post_norms["mlp"](layer.mlp(layer.norms["mlp"]["x"](x)))
    return model(tokens), model.final_norm(x)

  assert_close(*both(), 1e-5)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_norms_of_branches_by_hand(pre_norm):
  """y = x + norm(f(x)) without pre-norms; with them y = x + norm(f(norm x))."""
  config = decoders.config("llama", **OLMO2 | {"pre_norm": pre_norm, "num_layers": 2})
  model = decoders.drawn(config)
  tokens = decoders.tokens(config)
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  rotation = Rotation(config.layer_ropes[:1])
  place = {"segment_ids": jnp.ones_like(tokens), "positions": positions, "rotation": rotation}
  graphdef, state = nnx.split(model.layers)
  assert bool(nnx.to_flat_state(nnx.state(model.layers.norms))) == pre_norm

  @jax.jit
  def both():
    x = model.embed(tokens, positions)
    for index in range(2):
      layer = nnx.merge(graphdef, jax.tree.map(lambda leaf, i=index: leaf[i], state))
      n = layer.norms["attention"]["x"](x) if pre_norm else x
      x = x + layer.post_norms["attention"](layer.attention(n, n, n, **place)[0])
      n = layer.norms["mlp"]["x"](x) if pre_norm else x
      x = x + layer.post_norms["mlp"](layer.mlp(n))
    return model(tokens), model.final_norm(x)

  assert_close(*both(), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name, remat", [("standard", "full"), ("attn_res", "dots")])
def test_gradients_of_the_scan_are_those_of_the_loop(name, remat):
  config = decoders.config("llama", name, **ALL | EXTRAS, remat=remat)
  graphdef, state = nnx.split(decoders.decoder(config))
  tokens = decoders.tokens(config, length=7)

  def total(state, changes):
    model = nnx.merge(graphdef, state)
    model.config = dataclasses.replace(config, **changes)
    return jnp.mean(model.logits(model(tokens)) ** 2)

  scan, loop = (
    jax.jit(jax.value_and_grad(functools.partial(total, changes=changes)))(state)
    for changes in ({}, {"depth": "loop", "remat": "none"})
  )
  assert_close(scan, loop, 1e-5)


def test_a_window_as_long_as_the_row_is_none():
  plain = decoders.config("llama", windows=(0, 3))
  long = dataclasses.replace(plain, windows=(12, 3))
  graphdef, state = nnx.split(decoders.drawn(plain))
  tokens = decoders.tokens(plain, length=12)

  @jax.jit
  def hidden(state):
    found = []
    for config in (plain, long, dataclasses.replace(plain, windows=(11, 3))):
      model = nnx.merge(graphdef, state)
      model.config = config
      found.append(model(tokens))
    return found

  want, same, shorter = hidden(state)
  np.testing.assert_array_equal(same, want)
  changed = np.abs(shorter - want).max(axis=-1)
  assert (changed[:, :11] == 0).all() and (changed[:, 11] > 1e-3).all()


def test_the_loss_is_that_of_the_capped_logits():
  config = decoders.config("llama", logit_softcap=1.5)
  model = ModelDef(config, Layout())
  params = nnx.to_pure_dict(nnx.state(decoders.drawn(config)))
  tokens = decoders.tokens(config, length=13)
  ones = jnp.ones_like(tokens[:, 1:])
  rows = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "segment_ids": ones}
  rows["positions"] = jnp.broadcast_to(jnp.arange(12), ones.shape)

  @jax.jit
  def run(params):
    decoder = model.bind(params)
    hidden = decoder(rows["inputs"])
    weights = ones.astype(jnp.float32)
    plain = cross_entropy(hidden, decoder.head, rows["targets"], weights, chunk_size=8)
    got = text_loss(decoder, rows, 8)
    return got, plain, decoder.logits(hidden)

  got, plain, logits = run(params)
  assert np.abs(logits).max() < 1.5
  chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), rows["targets"][..., None], axis=-1)
  np.testing.assert_allclose(got.nats, -chosen.sum(), rtol=1e-5)
  assert abs(plain.nats - got.nats) > 1


def test_parameters_by_hand():
  def count(**changes):
    config = decoders.config("llama", **changes)
    model = nnx.eval_shape(lambda: decoders.decoder(config, random=False))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))

  layers, d, heads, kv, f = 3, 16, 16, 8, 24
  qkv = heads + 2 * kv
  for changes, more in (
    ({"bias": "qkv"}, layers * qkv),
    ({"bias": "attention"}, layers * (qkv + d)),
    ({"bias": "all"}, layers * (qkv + d + 2 * f + d)),
    ({"bias": "all", "norm": "layernorm"}, layers * (qkv + d + 2 * f + d + 2 * d) + d),
    ({"post_norm": True}, layers * 2 * d),
    ({"pre_norm": False}, -layers * 2 * d),
    ({"qk_norm": True}, layers * 2 * 4),
    ({"qk_norm": True, "qk_norm_over": "heads"}, layers * (heads + kv)),
    ({"parallel": True}, 0),
    ({"mlp": "geglu"}, 0),
    ({"mlp": "gelu_exact"}, -layers * d * f),
  ):
    assert count(**changes) - count() == more, changes


def test_flops_of_windows_and_gates():
  made = combinators.build("standard", num_layers=3, d_model=16, rngs=nnx.Rngs(0))

  def flops(**changes):
    return forward_flops_per_token(decoders.config("llama", **changes), made, 32)

  per_token = {0: 16, 8: 8 - 1, 99: 16}  # tokens that one of 32 sees on average
  assert flops(windows=(8,)) - flops() == 4 * 16 * 3 * (per_token[8] - per_token[0])
  assert flops(windows=(8, 0)) - flops() == 4 * 16 * 2 * (per_token[8] - per_token[0])
  assert flops(windows=(99,)) == flops() == flops(mlp="geglu") == flops(parallel=True)
  assert flops() - flops(mlp="gelu_exact") == 2 * 3 * 16 * 24


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"bias": True}, "bias=True must be one of none, qkv, attention, all"),
    ({"mlp": "relu"}, "mlp='relu' must be one of swiglu, geglu, gelu, gelu_exact"),
    ({"windows": ()}, r"windows=\(\) must be 1..num_layers=3 integers, 0 or positive"),
    ({"windows": (1, 2, 3, 4)}, r"windows=\(1, 2, 3, 4\) must be 1..num_layers=3"),
    ({"windows": (-1,)}, r"windows=\(-1,\) must be"),
    ({"rope_fraction": 0.3}, r"rope_fraction=0.3 must be in \(0, 1\] and rotate an even part of 4"),
    ({"rope_fraction": 1.5}, "rope_fraction=1.5 must be"),
    (
      {"rope_fraction": 0.5, "short_swa": ShortSWAConfig(3, 8)},
      r"rope_fraction=0.5 must be in \(0, 1\] and rotate an even part of 2",
    ),
    ({"qk_norm_over": "all"}, "qk_norm_over='all' must be one of head, heads"),
    ({"pre_norm": False, "norm_gate": NormGateConfig(2)}, "norm_gate.rank=2 must be 0 with pre_no"),
    ({"attention_softcap": -1.0}, "attention_softcap=-1.0 must be 0 or positive"),
    ({"logit_softcap": -1.0}, "logit_softcap=-1.0 must be 0 or positive"),
    ({"query_pre_attn_scalar": -1.0}, "query_pre_attn_scalar=-1.0 must be 0 or positive"),
    ({"rope_scaling": RopeScaling("ntk")}, "rope_scaling.kind='ntk' must be one of none, linear"),
    ({"rope_scaling": RopeScaling("linear", 0.0)}, "rope_scaling.factor=0.0 must be positive"),
    (
      {"rope_scaling": RopeScaling("llama3", 8.0)},
      "rope_scaling.original_max_positions=0 must be positive with kind='llama3'",
    ),
    (
      {"rope_scaling": RopeScaling("llama3", 8.0, 4.0, 4.0, 8)},
      "rope_scaling.low_freq_factor=4.0 must be between 0 and high_freq_factor=4.0",
    ),
  ],
)
def test_options_out_of_range_are_refused(changes, message):
  with pytest.raises(ValueError, match=f"config.model.{message}"):
    decoders.config(**changes)
