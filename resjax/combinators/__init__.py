"""Residual combinators: what a sublayer reads from the depth state, and how it writes to it.

  from flax import nnx
  from resjax import combinators

  combinator = combinators.build("mhc", num_layers=12, d_model=768, rngs=nnx.Rngs(0))

The class of a system is imported when it is asked for, here or by its name.
"""

import importlib
from typing import TYPE_CHECKING, Any

from resjax.combinators.base import FAMILIES as FAMILIES
from resjax.combinators.base import Combinator as Combinator
from resjax.combinators.base import TokenContext as TokenContext
from resjax.combinators.base import Views as Views
from resjax.combinators.outside import section as section
from resjax.combinators.pre_norm import PreNorm as PreNorm
from resjax.combinators.registry import SYSTEMS
from resjax.combinators.registry import build as build
from resjax.combinators.registry import check_section as check_section
from resjax.combinators.registry import get as get
from resjax.combinators.registry import load as load
from resjax.combinators.registry import names as names
from resjax.combinators.registry import options as options
from resjax.combinators.registry import register as register
from resjax.combinators.registry import settings as settings

if TYPE_CHECKING:
  from resjax.combinators.source import SourceCombinator as SourceCombinator
  from resjax.combinators.systems.attenuation import Attenuation as Attenuation
  from resjax.combinators.systems.attn_res import AttnRes as AttnRes
  from resjax.combinators.systems.attn_res import BlockAttnRes as BlockAttnRes
  from resjax.combinators.systems.deep_cross_attention import (
    DeepCrossAttention as DeepCrossAttention,
  )
  from resjax.combinators.systems.deep_delta import DeepDelta as DeepDelta
  from resjax.combinators.systems.deepnorm import DeepNorm as DeepNorm
  from resjax.combinators.systems.delta_ablation import DeltaAblation as DeltaAblation
  from resjax.combinators.systems.delta_attn_res import DeltaAttnRes as DeltaAttnRes
  from resjax.combinators.systems.delta_attn_res import DeltaBlockAttnRes as DeltaBlockAttnRes
  from resjax.combinators.systems.dense import DenseFormer as DenseFormer
  from resjax.combinators.systems.depth_attention import DepthAttention as DepthAttention
  from resjax.combinators.systems.elc import ELC as ELC
  from resjax.combinators.systems.gate import Gate as Gate
  from resjax.combinators.systems.gated_residual import GatedResidual as GatedResidual
  from resjax.combinators.systems.highway import Highway as Highway
  from resjax.combinators.systems.hyper_connections import HyperConnections as HyperConnections
  from resjax.combinators.systems.independent_hc import IndependentHC as IndependentHC
  from resjax.combinators.systems.laurel import Gemma3nLaurel as Gemma3nLaurel
  from resjax.combinators.systems.laurel import Laurel as Laurel
  from resjax.combinators.systems.mhc import MHC as MHC
  from resjax.combinators.systems.mhc import MHCLite as MHCLite
  from resjax.combinators.systems.muddformer import MUDDFormer as MUDDFormer
  from resjax.combinators.systems.multi_gate import MultiGate as MultiGate
  from resjax.combinators.systems.rezero_layerscale import LayerScale as LayerScale
  from resjax.combinators.systems.rezero_layerscale import ReZero as ReZero
  from resjax.combinators.systems.standard import Standard as Standard
  from resjax.combinators.systems.unet_skips import UNetSkips as UNetSkips
  from resjax.combinators.systems.x0_residual import X0Residual as X0Residual

_MODULES = {
  path.rpartition(".")[2]: f"systems.{path.rpartition('.')[0]}" for path in SYSTEMS.values()
}
_MODULES["SourceCombinator"] = "source"


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *_MODULES})
