"""The plain residual add."""

from typing import Any

from resjax.combinators.base import Combinator, Views
from resjax.typing import Array


class Standard(Combinator):
  """x ← x + f(x): every site reads and adds to one stream.

  State: x, D values per token. Parameters: none.

  Args:
    num_layers: L.
    d_model: D.
    sites: site names of a layer.

  Source: He et al., arXiv 1512.03385; pre-norm form arXiv 2002.04745.
  """

  def init(self, x, tokens=None) -> Array:
    """See `Combinator.init`."""
    return x

  def read(self, state: Array, layer, site) -> tuple[Views, Any]:
    """See `Combinator.read`."""
    return {"x": state}, None

  def write(self, state: Array, layer, site, out, *, normed=None, tape=None) -> Array:
    """See `Combinator.write`."""
    return state + out

  def final(self, state: Array) -> Array:
    """See `Combinator.final`."""
    return state
