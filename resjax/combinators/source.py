"""Combinators whose depth state is a list of sources that grows from layer to layer."""

import abc
import dataclasses
from typing import Any

import jax

from resjax.base import Array, PyTree
from resjax.combinators.base import Combinator, Layer, Strategy, Stream, Views
from resjax.kernels.depth_attention import Sources


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DepthState:
  """The depth state of a `SourceCombinator`, whose sources grow in number from layer to layer.

  Attributes:
    sources: the arrays that depth mixers read.
    running: pytree of fixed shape that sites hand on to the next site, such as a running sum.
    opened: what `SourceCombinator.open_block` returned for the depth block that is running; None
      in a Python loop, which does not call it.
  """

  sources: Sources
  running: PyTree = None
  opened: PyTree = None


class SourceCombinator(Combinator):
  """A combinator that keeps sources: its state is a `DepthState`.

  With strategy `history`, the default, every layer may append sources. With `depth_blocks` sources
  are appended after every `layers_per_block` layers. Both need integer layers outside
  `resjax.models.depth`. An option may make the state one of fixed shape; then a subclass sets
  `strategy` to `carry`.

  Attributes:
    layers_per_block: the number of layers in a depth block; 1 for `history`.
  """

  strategy: Strategy = "history"
  layers_per_block: int = 1

  def open_block(self, sources: Sources) -> tuple[Sources, PyTree]:
    """Returns the sources, and results that all sites of a depth block share, or None.

    A scan calls it before the first layer of a block, where `per_layer` parameters have a row for
    each layer of the block. The sites of the block find the shared results, such as the first of
    two phases of their reads, in `DepthState.opened`.

    Args:
      sources: the sources that are complete before the block.
    """
    return sources, None

  def close_block(self, state: DepthState) -> DepthState:
    """Returns the state after a depth block with the block's sources appended.

    It is linear in the state. With `history` the sources already are appended, by `write`.
    """
    return state


class SourceMixer(SourceCombinator):
  """A combinator whose sites read mixes of sources, maybe other ones for q, k and v than for x."""

  @abc.abstractmethod
  def _after(self, state: DepthState, layer: Layer, site: str, out: Array, tape: Any) -> DepthState:
    """Returns the depth state after a site; takes the arguments of `write`."""

  def write(
    self, state: DepthState, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> DepthState:  # fmt: skip
    """See `Combinator.write`.

    Raises:
      ValueError: sources cannot grow, see `check_layer`, or a view is not used, see `check_used`.
    """
    if self.strategy in ("history", "depth_blocks"):
      check_layer(layer, state.sources)
    check_used(self.view_names(site), normed, site)
    return self._after(state, layer, site, out, tape)


class EnteredStream(SourceCombinator):
  """A combinator that changes the stream x before every layer; every site: x ← x + f(x)."""

  family = "scalars"

  @abc.abstractmethod
  def _enter(self, state: DepthState, layer: Layer) -> Array:
    """Returns the stream [B, T, D] that the first site of a layer reads."""

  def read(self, state: DepthState, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`. The tape is the stream that the site adds to."""
    x = self._enter(state, layer) if site == self.sites[0] else state.running
    return {"x": x}, x


def check_used(offered: tuple[str, ...], normed: Views | None, site: str) -> None:
  """Refuses a branch that ignores q, k or v, whose parameters would then never learn.

  Args:
    offered: the views that the site is given.
    normed: the normalised views that its branch saw.
    site: its name.

  Raises:
    ValueError: the branch leaves out a view other than x, or it is not known which it saw.
  """
  others = [view for view in offered if view != "x"]
  if others and normed is None:
    raise ValueError(
      f"site {site!r} is given the views {', '.join(offered)}, and `write` is not told which of "
      "them its branch used; pass normed="
    )
  unused = [view for view in others if normed is not None and view not in normed]
  if unused:
    raise ValueError(
      f"site {site!r} is given the views {', '.join(offered)}, and its branch leaves out "
      f"{', '.join(unused)}; attend with q, k and v, or take a combinator whose only view is x"
    )


def check_layer(layer: Layer, sources: Sources) -> None:
  """Raises a ValueError if sources cannot grow: under a trace outside of `depth.run`."""
  if not isinstance(layer, int) and sources.bank is None:
    raise ValueError(
      f"layer={layer!r} is traced, but the sources grow from layer to layer; loop over Python ints "
      "and keep them static under remat (static_argnums, where Linen counts self as 0), scan with "
      "resjax.models.depth.run, or hand blocks a ResidualStream, which does either"
    )
