from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from .base import ResidualBase


class Streams(ResidualBase):
  """R streams H: x = Σ_s p_s H_s, H_r ← Σ_s M_rs H_s + b_r f(x), and the output Σ_s H_s.

  A subclass gives p [R], M [R, R] (None: the identity) and b [R] of a site, with the axes [B, T]
  before theirs where they depend on the token.
  """

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Tensor:
    return x[..., None, :].expand(*x.shape[:-1], self.num_streams, x.shape[-1])

  def read(self, state: Tensor, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    shares, mix, strength = self.coefficients(state.float(), layer, site)
    return {"x": self.weighed(state, shares)}, (mix, strength)

  def weighed(self, state: Tensor, shares: Tensor) -> Tensor:
    """Returns Σ_s p_s H_s."""
    return (shares[..., None] * state.float()).sum(-2).to(state.dtype)

  def write(self, state: Tensor, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    mix, strength = tape
    kept = state.float() if mix is None else mix @ state.float()
    return (kept + strength[..., None] * out[..., None, :].float()).to(state.dtype)

  def final(self, state: Tensor) -> Tensor:
    return state.float().sum(-2).to(state.dtype)
