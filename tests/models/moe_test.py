"""Decoders whose layers have a mixture of experts in place of an MLP."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.base.sharding import Layout
from resjax.models import ModelDef, MoEConfig, forward_flops_per_token
from resjax.models.config import MupConfig
from resjax.models.flops import inactive_parameters
from resjax.models.sampling import generate
from resjax.nn import Rotation
from resjax.testing.compare import assert_close
from tests.helpers import decoders, layouts, walks
from tests.models.decode_test import cached_and_whole

MIXED = MoEConfig(4, 2, expert_dim=8, first_dense=1)
DEEPSEEK = MoEConfig(
  4, 2, 8, 1, "sigmoid", routed_scaling_factor=2.0, selection_bias=True, first_dense=1
)
T = 12


def segments():
  """Two documents per row, and padding at the end of the first row."""
  ids = np.repeat([[1, 2]], T // 2, axis=1) * np.ones((2, 1), int)
  ids[0, -3:] = 0
  return ids, np.tile(np.arange(T // 2), (2, 2))


def gradient(config, **changes):
  """Hidden states, routing, and gradients of a function of both."""
  graphdef, state = nnx.split(decoders.drawn(config))
  config = dataclasses.replace(config, **changes)
  graphdef = nnx.graphdef(decoders.shapes(config))
  tokens = decoders.tokens(config, length=T)

  def run(state):
    hidden, routing = nnx.merge(graphdef, state).routed(tokens, *segments())
    return jnp.sum(hidden[..., :3]) + 0.3 * routing.balance + 0.1 * routing.z, (hidden, routing)

  return jax.jit(jax.grad(run, has_aux=True))(state)


@pytest.mark.parametrize("moe", [DEEPSEEK, dataclasses.replace(MIXED, first_dense=0, every=2)])
def test_layers_with_and_without_experts_are_a_plain_loop(moe):
  config = decoders.config(moe=moe)
  model, tokens = decoders.drawn(config), decoders.tokens(config, length=T)
  ids, positions = segments()
  place = {"segment_ids": jnp.array(ids), "positions": jnp.array(positions)}

  def own(part, index):
    return jax.tree.map(lambda leaf: leaf[index], part)

  @jax.jit
  def by_hand(model):
    x, layers, found = model.embed(tokens, place["positions"]), model.layers, []
    for index in range(config.num_layers):
      n = own(layers.norms, index)["attention"]["x"](x)
      rotation = {"rotation": Rotation(config.layer_ropes[index : index + 1])}
      x = x + own(layers.attention, index)(n, n, n, **place, **rotation)[0]
      n = own(layers.norms, index)["mlp"]["x"](x)
      if index in config.routed_layers:
        out, routing = own(layers.moe, config.routed_layers.index(index))(n, ids != 0)
        found.append(routing)
      else:
        out = own(layers.mlp, config.dense_layers.index(index))(n)
      x = x + out
    return model.final_norm(x), found

  want, found = by_hand(model)
  hidden, routing = jax.jit(lambda m: m.routed(tokens, *segments()))(model)
  assert_close(hidden, want, 1e-5)
  np.testing.assert_array_equal(routing.counts, [each.counts for each in found])
  np.testing.assert_array_equal(routing.counts.sum(-1), 2 * (ids != 0).sum())
  for name in ("balance", "z"):
    mean = np.mean([getattr(each, name) for each in found])
    np.testing.assert_allclose(getattr(routing, name), mean, rtol=1e-5)


@walks.names("standard", slow=("block_attn_res",), among=("standard", "block_attn_res"))
def test_loops_scans_and_recomputation_agree(name):
  config = decoders.config(residual=name, moe=DEEPSEEK)
  want = gradient(config, depth="loop")
  assert_close(gradient(config), want, 1e-5)
  assert_close(gradient(config, remat="dots"), want, 1e-5)
  # The choice alone depends on the bias.
  assert not np.any(want[0]["layers"]["moe"]["selection_bias"][...])
  assert np.abs(want[0]["layers"]["moe"]["router"]["kernel"][...]).min() > 0


def test_decoding_is_the_forward_pass():
  config = decoders.config(moe=DEEPSEEK)
  model, prompts = decoders.drawn(config), decoders.tokens(config, length=4)
  rows = generate(model, prompts, 5, key=jax.random.key(0), temperature=0.0)
  want = jnp.argmax(model.logits(model(rows)), -1)[:, 3:-1]
  np.testing.assert_array_equal(rows[:, 4:], want)


def test_a_dense_layer_starts_as_that_of_a_dense_model():
  mixed, dense = (
    decoders.decoder(decoders.config(moe=moe), random=False) for moe in (MIXED, MoEConfig())
  )
  got, want = mixed.layers.mlp.up_proj.kernel[...], dense.layers.mlp.up_proj.kernel[...]
  assert got.shape[0] == 1 and mixed.layers.moe.up_proj.kernel.shape == (2, 4, 16, 8)
  np.testing.assert_array_equal(got[0], want[0])


def test_floating_point_operations_and_parameters_are_those_of_chosen_experts():
  dense, seq = decoders.config(), 8
  combinator = decoders.shapes(dense).combinator
  flops = functools.partial(forward_flops_per_token, combinator=combinator, seq_len=seq)
  # Two experts of half the width each, and the router.
  moe = MoEConfig(5, 2, expert_dim=12)
  assert flops(decoders.config(moe=moe)) - flops(dense) == 3 * 2 * 16 * 5
  shared = MoEConfig(5, 1, 12, 1, norm_topk_prob=False, first_dense=2)
  assert flops(decoders.config(moe=shared)) - flops(dense) == 2 * 16 * 5

  def sizes(config):
    state = nnx.state(decoders.shapes(config))
    return sum(leaf.size for leaf in jax.tree.leaves(state)) - inactive_parameters(config)

  assert sizes(decoders.config(moe=moe)) - sizes(dense) == 3 * 16 * 5


MESHES = {
  "fsdp_tp": {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2},
  "long_context": {"data": 1, "expert": 2, "tensor": 2, "sequence": 2},
}


def gradient_on(layout, **changes):
  """The gradient of rows of two documents, in float64."""
  changes = {"moe": DEEPSEEK, "vocab_size": 32, "dtype": "float64"} | changes
  config = decoders.config(**changes)
  model = ModelDef(config, layout)
  params = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(decoders.drawn(config))))
  rng = np.random.default_rng(0)
  tokens, (ids, positions) = rng.integers(0, 32, (4, T + 1)), segments()
  rows = {"inputs": tokens[:, 1:]}
  rows |= {"segment_ids": np.tile(ids, (2, 1)), "positions": np.tile(positions, (2, 1))}
  rows = {key: np.asarray(value, np.int32) for key, value in rows.items()}
  if layout.has_mesh:
    params = jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding, model.abstract))
    rows = layout.put(rows, 4)

  def loss(params, rows):
    place = rows["segment_ids"], rows["positions"]
    hidden, routing = model.bind(params).routed(rows["inputs"], *place)
    return jnp.sum(hidden[..., :3]) + 0.1 * routing.balance + 0.1 * routing.z

  return jax.device_get(jax.jit(jax.grad(loss))(params, rows))


@functools.cache
def on_one_device():
  return gradient_on(Layout())


@pytest.mark.parametrize("rules", MESHES)
def test_eight_devices_compute_what_one_does(rules):
  with jax.enable_x64(True):
    assert_close(gradient_on(layouts.layout(rules, **MESHES[rules])), on_one_device(), 1e-12)


@walks.names(slow=("block_attn_res", "hyper_connections"))
def test_every_system_in_scans_on_meshes_and_in_decoding(name):
  moe, loop = MoEConfig(4, 2, expert_dim=8), combinators.get(name).strategy == "loop"
  changes = {"residual": name, "moe": moe, "remat": "none" if loop else "dots"}
  with jax.enable_x64(True):
    want = gradient_on(Layout(), **changes | {"depth": "loop", "remat": "none"})
    layout = layouts.layout("fsdp_tp", **MESHES["fsdp_tp"])
    got = gradient_on(layout, **changes | {"depth": "loop" if loop else "scan"})
  assert_close(got, want, 1e-11)
  config = decoders.config(**changes, depth="loop" if loop else "scan")
  assert_close(*cached_and_whole(config, (6, 1, 1)), 1e-5)


@pytest.mark.parametrize(
  "moe, changes, line",
  [
    (MoEConfig(4, 5), {}, "moe.num_experts_per_tok=5 must be in 1..4"),
    (MoEConfig(4, 0), {}, "moe.num_experts_per_tok=0 must be in 1..4"),
    (MoEConfig(-1), {}, "moe.num_experts=-1 must be in 0.."),
    (MoEConfig(4, expert_dim=-8), {}, "moe.expert_dim=-8 must be 0 .mlp_dim. or in 1.."),
    (MoEConfig(4, num_shared_experts=-1), {}, "moe.num_shared_experts=-1 must be in 0.."),
    (MoEConfig(num_shared_experts=1), {}, "moe.num_shared_experts=1 must be in 0..0"),
    (MoEConfig(selection_bias=True), {}, "moe.selection_bias=True must be False without num_exp"),
    (MoEConfig(4, 1), {}, "moe.norm_topk_prob=True must be False with num_experts_per_tok=1"),
    (MoEConfig(4), {"mup": MupConfig(64)}, "mup.base_width=64 must be 0 with moe.num_experts"),
    (MoEConfig(4, score="tanh"), {}, "moe.score='tanh' must be one of softmax, sigmoid"),
    (MoEConfig(4, routed_scaling_factor=0.0), {}, "routed_scaling_factor=0.0 must be positive"),
    (MoEConfig(4, first_dense=3), {}, r"moe.first_dense=3 must be in 0..2"),
    (MoEConfig(4, every=4), {}, "moe.every=4 must be in 1..num_layers=3"),
    (MoEConfig(4, every=2, first_dense=2), {}, "moe.every=2 must be so small that any layer has"),
    (MoEConfig(4), {"bias": "all"}, "config.model.bias='all' must be one without biases of MLPs"),
  ],
)
def test_what_no_mixture_can_be_is_refused(moe, changes, line):
  with pytest.raises(ValueError, match=line):
    decoders.config(moe=moe, **changes)
