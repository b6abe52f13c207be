"""Combinators by name."""

import difflib
import inspect

from flax import nnx

from resjax.combinators.attenuation import Attenuation
from resjax.combinators.attn_res import AttnRes, BlockAttnRes
from resjax.combinators.base import Combinator
from resjax.combinators.deep_cross_attention import DeepCrossAttention
from resjax.combinators.deep_delta import DeepDelta
from resjax.combinators.deepnorm import DeepNorm
from resjax.combinators.delta_attn_res import DeltaAttnRes, DeltaBlockAttnRes
from resjax.combinators.dense import DenseFormer
from resjax.combinators.depth_attention import DepthAttention
from resjax.combinators.elc import ELC
from resjax.combinators.gate import Gate
from resjax.combinators.highway import Highway
from resjax.combinators.hyper_connections import HyperConnections
from resjax.combinators.laurel import Laurel
from resjax.combinators.mhc import MHC, MHCLite
from resjax.combinators.muddformer import MUDDFormer
from resjax.combinators.rezero_layerscale import LayerScale, ReZero
from resjax.combinators.standard import Standard
from resjax.combinators.unet_skips import UNetSkips
from resjax.combinators.x0_residual import X0Residual
from resjax.sharding import Layout

_REGISTRY: dict[str, type[Combinator]] = {
  "standard": Standard,
  "attenuation": Attenuation,
  "gate": Gate,
  "rezero": ReZero,
  "layerscale": LayerScale,
  "highway": Highway,
  "deepnorm": DeepNorm,
  "x0_residual": X0Residual,
  "unet_skips": UNetSkips,
  "laurel": Laurel,
  "attn_res": AttnRes,
  "block_attn_res": BlockAttnRes,
  "delta_attn_res": DeltaAttnRes,
  "delta_block_attn_res": DeltaBlockAttnRes,
  "depth_attention": DepthAttention,
  "deep_delta": DeepDelta,
  "denseformer": DenseFormer,
  "elc": ELC,
  "deep_cross_attention": DeepCrossAttention,
  "muddformer": MUDDFormer,
  "hyper_connections": HyperConnections,
  "mhc": MHC,
  "mhc_lite": MHCLite,
}


def names() -> tuple[str, ...]:
  """Returns the names of all combinators."""
  return tuple(_REGISTRY)


def get(name: str) -> type[Combinator]:
  """Returns the class registered under `name`.

  Raises:
    ValueError: no such combinator.
  """
  if name not in _REGISTRY:
    near = difflib.get_close_matches(name, _REGISTRY, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(
      f"config.model.residual.name={name!r} is not a combinator; {hint}"
      f"registered: {', '.join(_REGISTRY)}"
    )
  return _REGISTRY[name]


def options(name: str) -> dict[str, object]:
  """Returns the options of a combinator with their defaults; sizes, sites and rngs left out."""
  found = {}
  for cls in get(name).__mro__:
    if not issubclass(cls, Combinator) or cls.__init__ is Combinator.__init__:
      break
    for key, parameter in inspect.signature(cls.__init__).parameters.items():
      if parameter.kind is parameter.KEYWORD_ONLY and key != "rngs":
        found.setdefault(key, parameter.default)
  return found


def build(
  name: str,
  *,
  num_layers: int,
  d_model: int,
  sites: tuple[str, ...] = ("attention", "mlp"),
  layout: Layout | None = None,
  rngs: nnx.Rngs,
  **kwargs,
) -> Combinator:
  """Returns a fresh combinator.

  Args:
    name: one of `names()`.
    num_layers: L.
    d_model: D.
    sites: names of the sites of a layer, in order.
    layout: mesh and sharding rules, for combinators that run kernels; default: one device.
    rngs: source of random initial values, for combinators that have any.
    **kwargs: the combinator's own options, see `options(name)`.

  Raises:
    ValueError: an unknown name or option, or an option out of range.
  """
  cls = get(name)
  for key in kwargs:
    if key not in options(name):
      allowed = ", ".join(options(name)) or "none"
      raise ValueError(f"{key!r} is not an option of combinator {name!r}; allowed: {allowed}")
  sizes = {"num_layers": num_layers, "d_model": d_model, "sites": sites, "layout": layout}
  return cls(**sizes, rngs=rngs, **kwargs)
