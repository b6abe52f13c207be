"""On eight devices every set of rules computes the loss and gradients of one device."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.base.sharding import Layout
from resjax.models.config import NormGateConfig, ShortSWAConfig
from resjax.models.model_def import ModelDef
from resjax.models.sampling import generate
from resjax.testing.compare import assert_close
from tests.helpers import decoders, layouts, walks
from tests.helpers.losses import text_loss

T = 28  # no other axis is as long, nor as long as half of it
MESHES = {
  "dp": {"data": 8},
  "fsdp": {"data": 2, "fsdp": 4},
  "fsdp_tp": {"data": 2, "fsdp": 2, "tensor": 2},
  "long_context": {"data": 1, "fsdp": 2, "tensor": 2, "sequence": 2},
}
QUICK, SLOW = ("block_attn_res", "long_context"), ("standard", "fsdp_tp")
EVERY_SET = ("standard", "block_attn_res", "mhc", "muddformer")


def walk():
  pairs = [(name, rules) for name in EVERY_SET for rules in MESHES]
  pairs += [(name, "fsdp_tp") for name in combinators.names() if name not in EVERY_SET]
  pairs.append(("deep_delta", "long_context"))  # convolutions over tokens
  return walks.words(pairs, quick=QUICK, slow=SLOW)


def config(name):
  # A vocabulary for the two devices along `tensor`; weights that amplify no rounding.
  sizes = {"vocab_size": 32, "init_std": 0.1}
  if name == "standard":  # learned positions, an output embedding, windows, caps, more norms
    sizes |= {"positions": "learned", "tied_embeddings": False, "post_norm": True, "bias": "qkv"}
    sizes |= {"windows": (4, 0), "attention_softcap": 1.0, "logit_softcap": 2.0}
    sizes |= {"value_residual": "gated", "value_mixing": "depth"}
    sizes["short_swa"] = ShortSWAConfig(3, 2)
  if name == "block_attn_res":  # attention and MLP as one site, part of a head rotated, gated norms
    sizes |= {"parallel": True, "rope_fraction": 0.5, "norm_gate": NormGateConfig(3)}
  return decoders.config("llama", name, **sizes)


def batch():
  """Two documents per row, and padding at the end of the first row."""
  rng = np.random.default_rng(0)
  segment_ids = np.repeat([[1, 2]], T // 2, axis=1) * np.ones((8, 1), int)
  segment_ids[0, -3:] = 0
  positions = np.tile(np.arange(T // 2), (8, 2))
  tokens = rng.integers(0, 32, (8, T + 1))
  rows = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
  rows |= {"segment_ids": segment_ids, "positions": positions}
  return {key: np.asarray(value, np.int32) for key, value in rows.items()}


def compiled(name, layout):
  """The gradient of the training loss, compiled, and its arguments."""
  model = ModelDef(config(name), layout)

  def loss(params, rows):
    sums = text_loss(model.bind(params), rows, 16)
    return (sums.nats + 0.1 * sums.z) / sums.tokens

  params = nnx.to_pure_dict(nnx.state(decoders.decoder(config(name))))
  rows = batch()
  if layout.has_mesh:
    params = jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding, model.abstract))
    rows = layout.put(rows, len(rows["inputs"]))
  return jax.jit(jax.value_and_grad(loss)).lower(params, rows).compile(), (params, rows)


@functools.cache
def on_one_device(name):
  program, arguments = compiled(name, Layout())
  return jax.device_get(program(*arguments))


@pytest.mark.parametrize("name, rules", walk())
def test_loss_and_gradients_of_eight_devices_are_those_of_one(name, rules):
  layout = layouts.layout(rules, **MESHES[rules])
  program, arguments = compiled(name, layout)
  assert_close(program(*arguments), on_one_device(name), 1e-5)
  gathered = gathered_activations(program.as_text())
  if rules == "long_context":  # keys and values [B, T, K, C] are gathered, nothing as wide as D
    gathered = [shape for shape in gathered if shape[-1] == 16]
  assert gathered == []


def gathered_activations(text):
  """Results of all-gathers in a compiled program that have an axis of T tokens, and features."""
  results = re.findall(r"= (.*) all-gather(?:-start)?\(", text)
  shapes = [tuple(map(int, d.split(","))) for r in results for d in re.findall(r"\[([\d,]+)\]", r)]
  return [shape for shape in shapes if T in shape and len(shape) > 2]


def test_a_gathered_source_would_be_seen():
  layout = layouts.layout("long_context", **MESHES["long_context"])
  x = jax.device_put(jnp.ones((8, T, 16)), layout.sharding("batch", "tokens", "embed"))
  whole = jax.jit(lambda x: 2 * x, out_shardings=layout.sharding(None, None, None))
  assert (8, T, 16) in gathered_activations(whole.lower(x).compile().as_text())


@pytest.mark.parametrize(
  "name", ["standard", pytest.param("deep_delta", marks=pytest.mark.release)]
)
@pytest.mark.parametrize("length", [pytest.param(3, marks=pytest.mark.release), 4])
@pytest.mark.slow
def test_a_split_sequence_generates_the_same_tokens(name, length):
  # 5 rows and prompts of 3 tokens divide over no mesh axis, those of 4 tokens do.
  prompts = np.random.default_rng(0).integers(0, 32, (5, 4)).astype(np.int32)

  def tokens(layout):
    model = ModelDef(config(name), layout)
    params = nnx.to_pure_dict(nnx.state(decoders.decoder(config(name))))
    if layout.has_mesh:
      params = jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding, model.abstract))
    options = {"key": jax.random.key(0), "temperature": 0.0}
    run = jax.jit(lambda params, rows: generate(model.bind(params), rows, 6, **options))
    return run(params, prompts[:, :length])

  split = layouts.layout("long_context", **MESHES["long_context"])
  np.testing.assert_array_equal(tokens(split), tokens(Layout()))
