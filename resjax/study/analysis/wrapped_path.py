"""A residual path that delegates to another one, as a base class for observing or changing it."""

import dataclasses
from typing import Any

from flax import nnx

from resjax.base import Array, PyTree
from resjax.combinators import Combinator, Layer, Strategy, TokenContext, Views
from resjax.models import Decoder


class WrappedPath(Combinator):
  """A combinator that hands every call on to another one, by default in a Python loop.

  Args:
    inner: any combinator.
  """

  strategy: Strategy = "loop"

  def __init__(self, inner: Combinator):
    super().__init__(
      num_layers=inner.num_layers, d_model=inner.d_model, sites=inner.sites, layout=inner.layout
    )
    self.inner = inner
    self.pre_norm, self.final_norm = inner.pre_norm, inner.final_norm

  def init(self, x: Array, tokens: TokenContext | None = None) -> PyTree:
    """See `Combinator.init`."""
    return self.inner.init(x, tokens)

  def read(self, state: PyTree, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`."""
    return self.inner.read(state, layer, site)

  def write(self, state: PyTree, layer: Layer, site: str, out: Array, **rest: Any) -> PyTree:
    """See `Combinator.write`."""
    return self.inner.write(state, layer, site, out, **rest)

  def final(self, state: PyTree) -> Array:
    """See `Combinator.final`."""
    return self.inner.final(state)

  def final_after(self, state: PyTree, layer: Layer, site: str) -> Array:
    """See `Combinator.final_after`."""
    return self.inner.final_after(state, layer, site)

  def view_names(self, site: str) -> tuple[str, ...]:
    """See `Combinator.view_names`."""
    return self.inner.view_names(site)

  def _position(self, layer: Layer, site: str) -> int:
    """Returns the number of the depth position behind a site; 0 is the embedding."""
    assert isinstance(layer, int)  # as it is in a Python loop
    return 1 + layer * len(self.sites) + self.sites.index(site)


def with_path(decoder: Decoder, path: WrappedPath) -> Decoder:
  """Returns a decoder with the same parameters and another residual path, without remat."""
  changed = nnx.merge(*nnx.split(decoder))
  changed.config = dataclasses.replace(decoder.config, depth="loop", remat="none")
  changed.combinator = path
  return changed
