from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from .base import ResidualBase


class LayerMixes(ResidualBase):
  """The first site of a layer reads mixes of the embedding and of what earlier layers left.

  Other sites read the stream, which begins at the mix x and to which every site adds. The state has
  the sources, the stream, and the sum of the outputs of the layer's branches so far.
  """

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Any:
    return [x], x, None

  def mixes(self, sources: list[Tensor], stream: Tensor, layer: int) -> dict[str, Tensor]:
    """Returns the views of the first site of a layer."""
    raise NotImplementedError

  def with_layer(self, sources: list, stream: Tensor, added: Tensor, layer: int) -> list[Tensor]:
    """Returns the sources after the last site of a layer."""
    return [*sources, stream]

  def read(self, state: Any, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    sources, stream, _ = state
    views = {"x": stream} if site else self.mixes(sources, stream, layer)
    return views, views["x"]

  def write(self, state: Any, layer: int, site: int, out: Tensor, normed: dict, tape: Tensor):
    sources, _, added = state
    stream, added = tape + out, added + out if site else out
    if site == self.num_sites - 1:
      sources = self.with_layer(sources, stream, added, layer)
    return sources, stream, added
