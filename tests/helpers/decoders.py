"""Small decoders in both styles, from the defaults of configs/base.py."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from configs import base
from resjax import combinators
from resjax.models.config import (
  DecoderConfig,
  DepthValuesConfig,
  MoEConfig,
  MupConfig,
  NormGateConfig,
  ResidualConfig,
  ShortSWAConfig,
  ValueGateConfig,
)
from resjax.models.decoder import Decoder
from resjax.nn.rope import NOT_ROTATED
from resjax.nn.rope_scaling import RopeScaling

STYLES = ("gpt2", "llama")


def config(style="llama", residual="standard", options=None, **changes):
  """A `DecoderConfig` of 3 narrow layers, with 2 streams at most; `changes` are its fields."""
  fields = base.get_config(style).model.to_dict() | {
    "vocab_size": 31, "max_positions": 32, "num_layers": 3, "d_model": 16, "num_heads": 4,
    "num_kv_heads": 2, "mlp_dim": 24, "dtype": "float32", "init_std": 0.3, "remat": "none",
  }  # fmt: skip
  del fields["residual"]
  chosen = combinators.options(residual)
  if "num_streams" in chosen:
    chosen["num_streams"] = 2  # four take long to compile
  chosen |= options or {}
  fields["short_swa"] = ShortSWAConfig(**fields["short_swa"])
  fields["rope_scaling"] = RopeScaling(**fields["rope_scaling"])
  fields["moe"] = MoEConfig(**fields["moe"])
  fields["mup"] = MupConfig(**fields["mup"])
  fields["norm_gate"] = NormGateConfig(**fields["norm_gate"])
  fields["value_gate"] = ValueGateConfig(**fields["value_gate"])
  fields["depth_values"] = DepthValuesConfig(**fields["depth_values"])
  return DecoderConfig(**fields | changes, residual=ResidualConfig(residual, chosen))


def decoder(config, *, random=True, **kwargs):
  """The decoder; if `random`, no parameter (gain, bias, query) keeps its neutral value."""
  made = Decoder(config, rngs=nnx.Rngs(0), **kwargs)
  if not random:
    return made
  rng = np.random.default_rng(0)
  graphdef, state = nnx.split(made)
  matrices = [f"combinator/{name}" for name in made.combinator.decayed_parameters]

  def move(path, a):
    # A combinator's matrices are moved by as much in what they make of normal inputs.
    name = jax.tree_util.keystr(path[:2], simple=True, separator="/")
    fan_in = a.shape[-2] if name in matrices else 1
    by = (0.2 * fan_in**-0.5 * rng.normal(size=a.shape)).astype(a.dtype)
    return jax.device_put(np.asarray(a) + by, a.sharding if a.committed else None)

  return nnx.merge(graphdef, jax.tree.map_with_path(move, state))


def shapes(config):
  """The decoder with shapes for parameters."""
  return nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))


def drawn(config):
  """The decoder with every parameter drawn by numpy: nothing is compiled to make it."""
  graphdef, state = nnx.split(shapes(config))
  rng = np.random.default_rng(0)

  def draw(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    centre = 1.0 if "scale" in name else 0.0
    return jax.device_put((centre + 0.3 * rng.normal(size=leaf.shape)).astype(leaf.dtype))

  return nnx.merge(graphdef, jax.tree.map_with_path(draw, state))


def tokens(config, batch=2, length=12, seed=0):
  rng = np.random.default_rng(seed)
  return jax.device_put(rng.integers(0, config.vocab_size, (batch, length)))


def training_bytes(name, remat, num_layers):
  """Temporary bytes of a compiled gradient step; nothing is run."""
  made = config(
    "llama", name, {"layers_per_block": 4} if name == "block_attn_res" else None,
    num_layers=num_layers, d_model=64, mlp_dim=128, remat=remat, max_positions=256,
  )  # fmt: skip
  model = nnx.eval_shape(lambda: Decoder(made, rngs=nnx.Rngs(0)))
  graphdef, state = nnx.split(model)

  def loss(state, tokens):
    return jnp.mean(nnx.merge(graphdef, state)(tokens) ** 2)

  tokens = jax.ShapeDtypeStruct((1, 256), jnp.int32)
  compiled = jax.jit(jax.grad(loss)).lower(state, tokens).compile()
  return compiled.memory_analysis().temp_size_in_bytes


class Given(nnx.Module):
  """Stands in for the embedding: the sublayers' input is a parameter."""

  def __init__(self, x):
    self.x = nnx.Param(x)

  def __call__(self, tokens, positions):
    return self.x[...]


def load(decoder, arrays):
  """The decoder with all parameters taken from {"path/of/names": array}; none is left over."""
  graphdef, state = nnx.split(decoder)
  flat = {"/".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(state)}
  assert set(flat) == set(arrays), set(flat) ^ set(arrays)
  for path, variable in flat.items():
    assert variable.shape == arrays[path].shape, path
  loaded = {tuple(path.split("/")): jnp.asarray(a, jnp.float32) for path, a in arrays.items()}
  nnx.replace_by_pure_dict(state, nnx.traversals.unflatten_mapping(loaded))
  return nnx.merge(graphdef, state)


def branch(layer, site, normed, tokens, rotation=NOT_ROTATED):
  """The output of a site of a layer that has one sublayer there."""
  if site == "mlp":
    return layer.mlp(normed["x"])
  views = (normed.get(view, normed.get("x")) for view in "qkv")
  place = {"segment_ids": tokens.segment_ids, "positions": tokens.positions}
  return layer.attention(*views, **place, rotation=rotation)[0]
