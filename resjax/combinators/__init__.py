"""Residual combinators: what a sublayer reads from the depth state, and what it leaves there."""

from resjax.combinators.attenuation import Attenuation as Attenuation
from resjax.combinators.attenuation import Gate as Gate
from resjax.combinators.attn_res import AttnRes as AttnRes
from resjax.combinators.attn_res import BlockAttnRes as BlockAttnRes
from resjax.combinators.base import Combinator as Combinator
from resjax.combinators.base import TokenContext as TokenContext
from resjax.combinators.base import Views as Views
from resjax.combinators.deep_cross_attention import DeepCrossAttention as DeepCrossAttention
from resjax.combinators.dense import DenseFormer as DenseFormer
from resjax.combinators.elc import ELC as ELC
from resjax.combinators.muddformer import MUDDFormer as MUDDFormer
from resjax.combinators.registry import build as build
from resjax.combinators.registry import get as get
from resjax.combinators.registry import names as names
from resjax.combinators.registry import options as options
from resjax.combinators.standard import Standard as Standard
