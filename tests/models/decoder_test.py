import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.models.decoder import Decoder
from resjax.testing.compare import assert_close
from tests.helpers import decoders, walks

names = pytest.mark.parametrize("name", combinators.names())


@walks.names("block_attn_res", "deep_delta", slow=("standard", "gate", "hyper_connections"))
def test_no_token_sees_later_ones(name):
  check_causal("llama", name)


@walks.names("standard", "muddformer")
def test_no_token_sees_later_ones_in_gpt2_style(name):
  check_causal("gpt2", name)


def check_causal(style, name):
  config = decoders.config(style, name, depth="loop")
  model = decoders.decoder(config)
  tokens = decoders.tokens(config, batch=1, length=6)
  positions = jnp.broadcast_to(jnp.arange(6), tokens.shape)
  model.embed = decoders.Given(model.embed(tokens, positions))
  graphdef, embedded, rest = nnx.split(model, nnx.PathContains("embed"), ...)

  def output(embedded):
    return nnx.merge(graphdef, embedded, rest)(tokens)[0].sum(axis=-1)

  gradients = jax.tree.leaves(jax.jit(jax.jacrev(output))(embedded))[0]  # [T, 1, T, D]
  reach = np.abs(gradients).max(axis=(1, 3))
  assert (reach[np.triu_indices(6, 1)] == 0).all()
  assert (reach[np.tril_indices(6)] > 0).all()


@walks.names("block_attn_res", "deep_delta", slow=("standard", "gate", "hyper_connections"))
def test_packed_documents_are_those_alone(name):
  check_packed("llama", name)


@walks.names("standard", "muddformer")
def test_packed_documents_are_those_alone_in_gpt2_style(name):
  check_packed("gpt2", name)


def check_packed(style, name):
  config = decoders.config(style, name, depth="loop")
  model = decoders.decoder(config)

  @jax.jit
  def logits(*batch):
    return model.logits(model(*batch))

  tokens = decoders.tokens(config, batch=1, length=12)
  cuts = (0, 4, 8, 12)
  spans = list(itertools.pairwise(cuts))
  positions = jnp.concatenate([jnp.arange(b - a) for a, b in spans])[None]
  segment_ids = jnp.concatenate([jnp.full(b - a, i + 1) for i, (a, b) in enumerate(spans)])[None]
  packed = logits(tokens, segment_ids, positions)
  for a, b in spans:
    assert_close(packed[:, a:b], logits(tokens[:, a:b]), 1e-5)
  one_document = logits(tokens, jnp.ones_like(tokens), jnp.arange(12)[None])
  assert np.abs(packed[:, 8:] - one_document[:, 8:]).max() > 1e-2


def size(model):
  return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))


@functools.cache
def plain_size():
  return size(decoders.shapes(decoders.config("llama")))


def full_size(style, **changes):
  sizes = {
    "vocab_size": 50257, "max_positions": 1024, "num_layers": 12, "d_model": 768, "num_heads": 12,
    "num_kv_heads": 12, "mlp_dim": 3072,
  }  # fmt: skip
  return decoders.config(style, **sizes | changes)


def test_gpt2_has_its_published_number_of_parameters():
  assert size(decoders.shapes(full_size("gpt2"))) == 124_439_808


def test_llama_style_counts_by_hand():
  sizes = {"num_kv_heads": 4, "mlp_dim": 2048, "tied_embeddings": False}
  layer = 768 * (2 * 768 + 2 * 4 * 64) + 3 * 768 * 2048 + 2 * 768
  model = decoders.shapes(full_size("llama", **sizes))
  assert size(model) == 2 * 50257 * 768 + 12 * layer + 768


@names
def test_a_combinator_adds_its_own_parameters_and_no_others(name):
  config = decoders.config("llama", name)
  model = decoders.shapes(config)
  made = model.combinator
  views = made.view_names("attention")
  used = set("qkv") if set("qkv") <= set(views) else views
  norms = len(used) + 1 if made.pre_norm else 0  # per layer, one of them of the MLP
  change = ((norms - 2) * config.num_layers + made.final_norm - 1) * config.d_model
  assert size(model) - plain_size() == made.num_parameters() + change


def test_loop_and_remat_are_the_scan():
  config = decoders.config("llama", "block_attn_res", {"layers_per_block": 2})
  tokens = decoders.tokens(config)
  graphdef, state = nnx.split(decoders.decoder(config))

  def loss(state, **changes):
    model = nnx.merge(graphdef, state)
    model.config = dataclasses.replace(config, **changes)
    return jnp.mean(jax.nn.log_softmax(model.logits(model(tokens)))[..., 0])

  want = jax.jit(jax.value_and_grad(functools.partial(loss, depth="loop")))(state)
  for remat in ("none", "full"):
    got = jax.jit(jax.value_and_grad(functools.partial(loss, remat=remat)))(state)
    assert_close(got, want, 1e-5)


@walks.names(
  "standard", "gated_residual", "block_attn_res", "mhc", "muddformer", others=pytest.mark.slow
)
def test_bfloat16_keeps_float32_parameters_and_logits(name):
  config = decoders.config("llama", name, dtype="bfloat16", depth="loop")
  model = decoders.shapes(config)
  hidden = nnx.eval_shape(Decoder.__call__, model, decoders.tokens(config))
  assert hidden.dtype == jnp.bfloat16
  assert nnx.eval_shape(Decoder.logits, model, hidden).dtype == jnp.float32
  assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}


def test_tied_and_untied_heads():
  tied = decoders.decoder(decoders.config())
  np.testing.assert_array_equal(tied.head, tied.embed.embedding[...])
  untied = decoders.decoder(decoders.config(tied_embeddings=False))
  assert untied.head.shape == tied.head.shape
  hidden = jax.random.normal(jax.random.key(0), (1, 2, 16))
  want = np.float64(hidden) @ np.float64(untied.head).T
  assert_close(untied.logits(hidden), want, 1e-6)


def test_layers_start_different_and_outputs_smaller():
  config = decoders.config(num_layers=8, d_model=64, mlp_dim=256, init_std=0.02)
  layers = decoders.decoder(config, random=False).layers
  up, down = (np.asarray(p.kernel[...]) for p in (layers.mlp.up_proj, layers.mlp.down_proj))
  assert not np.array_equal(up[0], up[1])
  np.testing.assert_allclose(up.std(), 0.02, rtol=0.01)
  np.testing.assert_allclose(down.std(), 0.02 / np.sqrt(2 * 8), rtol=0.01)


def test_deepnorm_scales_value_output_and_mlp_kernels_and_has_no_pre_norm():
  config = decoders.config(
    "llama", "deepnorm", num_layers=8, d_model=64, num_kv_heads=4, mlp_dim=256, init_std=0.02,
    scaled_output_init=False,
  )  # fmt: skip
  layers = nnx.to_pure_dict(nnx.state(decoders.decoder(config, random=False).layers))
  assert set(layers) == {"attention", "mlp"}  # no norms
  kernels = {name: p["kernel"] for site in layers.values() for name, p in site.items()}
  scaled = {"v_proj", "o_proj", *layers["mlp"]}
  assert set(kernels) - scaled == {"q_proj", "k_proj"}
  for name, kernel in kernels.items():
    want = 0.02 * (8 * 8) ** -0.25 if name in scaled else 0.02
    np.testing.assert_allclose(np.std(kernel), want, rtol=0.03, err_msg=name)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_rezero_chooses_whether_layers_have_pre_norms(pre_norm):
  made = decoders.decoder(decoders.config("llama", "rezero", {"pre_norm": pre_norm}))
  assert ("norms" in nnx.to_pure_dict(nnx.state(made.layers))) == pre_norm


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"num_layers": 0}, "config.model.num_layers=0 must be at least 1"),
    ({"num_heads": 3, "num_kv_heads": 1}, "d_model=16 must be divisible by num_heads=3"),
    ({"num_kv_heads": 3}, "num_kv_heads=3 must be a divisor of num_heads=4"),
    ({"head_dim": 5}, "head_dim=5 must be even"),
    ({"norm": "batchnorm"}, "norm='batchnorm' must be one of rmsnorm, layernorm"),
    ({"mlp": "relu"}, "mlp='relu' must be one of swiglu, geglu"),
    ({"positions": "none"}, "positions='none' must be one of rope, learned"),
    ({"dtype": "int8"}, "dtype='int8' must be one of bfloat16"),
    ({"remat": "half"}, "remat='half' must be one of none, dots, full"),
    ({"depth": "while"}, "depth='while' must be one of scan, loop"),
  ],
)
def test_decoders_that_cannot_exist_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    decoders.config(**changes)


def test_learned_positions_end():
  config = decoders.config("gpt2", max_positions=8)
  with pytest.raises(ValueError, match="9 tokens are more than the 8 learned positions"):
    nnx.eval_shape(Decoder.__call__, decoders.shapes(config), decoders.tokens(config, length=9))
