"""Residual combinators: what a sublayer reads from the depth state, and what it leaves there."""

from resjax.combinators.attenuation import Attenuation as Attenuation
from resjax.combinators.attn_res import AttnRes as AttnRes
from resjax.combinators.attn_res import BlockAttnRes as BlockAttnRes
from resjax.combinators.base import Combinator as Combinator
from resjax.combinators.base import TokenContext as TokenContext
from resjax.combinators.base import Views as Views
from resjax.combinators.deepnorm import DeepNorm as DeepNorm
from resjax.combinators.delta_attn_res import DeltaAttnRes as DeltaAttnRes
from resjax.combinators.delta_attn_res import DeltaBlockAttnRes as DeltaBlockAttnRes
from resjax.combinators.depth_attention import DepthAttention as DepthAttention
from resjax.combinators.gate import Gate as Gate
from resjax.combinators.highway import Highway as Highway
from resjax.combinators.hyper_connections import HyperConnections as HyperConnections
from resjax.combinators.laurel import Laurel as Laurel
from resjax.combinators.mhc import MHC as MHC
from resjax.combinators.mhc import MHCLite as MHCLite
from resjax.combinators.deep_delta import DeepDelta as DeepDelta
from resjax.combinators.registry import build as build
from resjax.combinators.registry import get as get
from resjax.combinators.registry import names as names
from resjax.combinators.registry import options as options
from resjax.combinators.scaled import LayerScale as LayerScale
from resjax.combinators.scaled import ReZero as ReZero
from resjax.combinators.standard import Standard as Standard
from resjax.combinators.unet_skips import UNetSkips as UNetSkips
from resjax.combinators.x0_residual import X0Residual as X0Residual
