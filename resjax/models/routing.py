"""How the tokens of a batch choose among the experts of all layers: losses, biases, statistics."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from resjax.base import Array, PyTree, wider
from resjax.models.config import DecoderConfig
from resjax.models.depth import Relay, SiteVisit
from resjax.nn import Routing

_OVERLOADED = 2.0  # an expert with so many times the mean load is counted as overloaded


def routing_relay(config: DecoderConfig) -> Relay:
  """Returns what sums up the losses of the routers, [2], from layer to layer, with gradients."""

  def give(context: PyTree, _: Array) -> PyTree:
    return context

  def take(_: PyTree, visits: Sequence[SiteVisit], losses: Array) -> Array:
    return losses + jnp.stack([(found := _routing(visits)).balance, found.z])

  return Relay(jnp.zeros(2, wider(jnp.dtype(config.dtype), jnp.float32)), give, take)


def collect_routing(visits: Sequence[SiteVisit], _: PyTree) -> tuple[Array, Array]:
  """Returns counts and entropy of a layer's router."""
  found = _routing(visits)
  return found.counts, found.entropy


def summed(config: DecoderConfig, losses: Array, found: tuple[Array, Array]) -> Routing:
  """Returns the routing of all layers, as `Decoder.routed` has it.

  Args:
    config: the decoder.
    losses: what `routing_relay` leaves.
    found: what `collect_routing` found, with a leading axis L.
  """
  layers = np.array(config.routed_layers)
  counts, entropy = (leaf if len(layers) == len(leaf) else leaf[layers] for leaf in found)
  return Routing(counts, entropy, *(losses / len(layers)))


def no_routing(config: DecoderConfig) -> Routing | None:
  """Returns the routing of no token; None without experts."""
  layers, dtype = len(config.routed_layers), wider(jnp.dtype(config.dtype), jnp.float32)
  if not layers:
    return None
  shapes = (layers, config.moe.num_experts), (layers,), (), ()
  return Routing(*(jnp.zeros(shape, dtype) for shape in shapes))


def _routing(visits: Sequence[SiteVisit]) -> Routing:
  (found,) = (visit.kept[1] for visit in visits if visit.kept[1] is not None)
  return found


def balanced(params: Mapping[str, Any], routing: Routing, rate: float) -> dict[str, Any]:
  """Returns parameters whose selection biases went one step against the load of their experts.

  b_e <- b_e + rate · sign(mean load - load of e)

  Args:
    params: the parameters of a decoder, nested dicts.
    routing: how the tokens of the whole batch chose.
    rate: the size of a step.

  Source: arXiv 2408.15664; DeepSeek-V3, arXiv 2412.19437, §2.1.2.
  """
  moe = params["layers"]["moe"]
  mean = jnp.mean(routing.counts, axis=-1, keepdims=True)
  bias = moe["selection_bias"] + rate * jnp.sign(mean - routing.counts)
  moved = {**moe, "selection_bias": bias.astype(moe["selection_bias"].dtype)}
  return {**params, "layers": {**params["layers"], "moe": moved}}


def routing_record(config: DecoderConfig, routing: Routing) -> dict[str, float]:
  """Returns what the log of a step says of its routers.

  `dead` and `overloaded` are the shares of the experts of all layers that no token chose, and that
  more than twice the mean chose; `max_load` is the largest load over the mean load of a layer;
  `entropy` is that of a token's scores over that of equal ones, 0..1; `balance` is 1 where all
  experts are equally loaded, and `z` the mean square of the log of the routers' normaliser.

  Args:
    config: the decoder.
    routing: that of a batch, on the host.
  """
  counts = np.asarray(routing.counts, np.float64)
  tokens = max(counts[0].sum() / config.moe.num_experts_per_tok, 1.0)
  load = counts / max(counts[0].mean(), 1e-9)
  entropy = np.asarray(routing.entropy, np.float64) / tokens
  most = np.log(config.moe.num_experts) or 1.0
  return {
    "router/dead": float((counts == 0).mean()),
    "router/overloaded": float((load > _OVERLOADED).mean()),
    "router/max_load": float(load.max()),
    "router/entropy": float(entropy.mean() / most),
    "router/balance": float(routing.balance) / tokens,
    "router/z": float(routing.z) / tokens,
  }
