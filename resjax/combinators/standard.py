"""The plain residual add."""

from flax import nnx

from resjax.combinators.base import Combinator


class Standard(Combinator):
  """x ← x + f(x): every site reads and adds to one stream.

  Stores x, D values per token. Parameters: none. FLOPs: D per site and token.

  Args:
    num_layers: L.
    d_model: D.
    sites: site names of a layer.
    rngs: unused; part of every combinator's signature.

  Source: He et al., arXiv 1512.03385; pre-norm form arXiv 2002.04745.
  """

  def __init__(self, *, rngs: nnx.Rngs | None = None, **sizes):
    super().__init__(**sizes)

  def init(self, x, tokens=None):
    """See `Combinator.init`."""
    return x

  def read(self, state, layer, site):
    """See `Combinator.read`."""
    return {"x": state}, None

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    """See `Combinator.write`."""
    return state + out

  def final(self, state):
    """See `Combinator.final`."""
    return state
