"""The plain residual add."""

from typing import Any

from resjax.combinators.base import Combinator, Layer, Stream, TokenContext, Views


class Standard(Combinator):
  """x ← x + f(x): every site reads and adds to one stream.

  State: x, D values per token. Parameters: none.

  Args:
    num_layers: L.
    d_model: D.
    sites: site names of a layer.

  Source: He et al., arXiv 1512.03385; pre-norm form arXiv 2002.04745.
  """

  family = "scalars"

  def init(self, x: Stream, tokens: TokenContext | None = None) -> Stream:
    return x

  def read(self, state: Stream, layer: Layer, site: str) -> tuple[Views, Any]:
    return {"x": state}, None

  def write(
    self, state: Stream, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> Stream:  # fmt: skip
    return state + out

  def final(self, state: Stream) -> Stream:
    return state
