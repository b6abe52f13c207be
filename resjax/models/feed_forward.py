"""Layers with an MLP and layers with a mixture of experts, in one stack that a scan can run."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax import combinators
from resjax.base import Array, PyTree
from resjax.base.sharding import Layout
from resjax.models.config import DecoderConfig
from resjax.models.layer import Layer
from resjax.nn import MLP, Keys, MoE, Router


def stacked_layers(
  config: DecoderConfig, combinator: combinators.Combinator, layout: Layout, rngs: nnx.Rngs
) -> Layer:
  """Returns all layers, with a leading axis L; MLPs and mixtures of those alone that have them."""
  keys = jax.random.split(rngs.params(), config.num_layers)
  layers = jax.vmap(lambda key: Layer(config, combinator, layout, nnx.Rngs(params=key)))(keys)
  for name, make, numbers in (
    ("mlp", _mlp, config.dense_layers), ("moe", _moe, config.routed_layers),
  ):  # fmt: skip
    if numbers:
      made = partial(make, config, combinator.branch_init_gain, layout)
      own = keys if len(numbers) == len(keys) else keys[np.array(numbers)]
      setattr(layers, name, jax.vmap(lambda key, make=made: make(_named(key, "mlp")))(own))
  return layers


def for_all_layers(config: DecoderConfig, layers: PyTree) -> tuple[PyTree, Array | None]:
  """Returns the parameters of `stacked_layers` in rows for a scan, and which rows have a mixture.

  Every row of a scan has the same parameters. A layer without an MLP has that of another layer,
  which it does not use, and so it is with mixtures.
  """
  if not (config.dense_layers and config.routed_layers):
    return layers, None
  for name, numbers in (("mlp", config.dense_layers), ("moe", config.routed_layers)):
    rows = np.searchsorted(numbers, np.arange(config.num_layers)).clip(max=len(numbers) - 1)
    layers[name] = jax.tree.map(lambda leaf, rows=rows: leaf[rows], layers[name])
  return layers, jnp.array([layer in config.routed_layers for layer in range(config.num_layers)])


def _named(key: Array, name: str) -> nnx.Rngs:
  """Returns the source of the part of this name of a layer whose key is given."""
  return Keys(nnx.Rngs(params=key))(name)


def _mlp(config: DecoderConfig, gain: float, layout: Layout, rngs: nnx.Rngs) -> MLP:
  """Returns the MLP of a layer."""
  return MLP(
    config.mlp, config.d_model, config.mlp_dim, bias=config.bias == "all", layout=layout,
    std=config.matrix_std * gain, out_std=config.output_std * gain, dtype=config.dtype, rngs=rngs,
  )  # fmt: skip


def _moe(config: DecoderConfig, gain: float, layout: Layout, rngs: nnx.Rngs) -> MoE:
  """Returns the mixture of experts of a layer."""
  moe = config.moe
  router = Router(moe.num_experts_per_tok, moe.score, moe.norm_topk_prob, moe.routed_scaling_factor)
  return MoE(
    config.mlp, config.d_model, moe.num_experts, config.expert_dim, router=router,
    shared_dim=config.expert_dim * moe.num_shared_experts, selection_bias=moe.selection_bias,
    std=config.matrix_std * gain, out_std=config.output_std * gain, dtype=config.dtype,
    layout=layout, rngs=rngs,
  )  # fmt: skip
