"""The combinator protocol: what a site reads, and what becomes of what it writes."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax
from flax import nnx

from resjax.combinators import costs
from resjax.kernels.depth_attention import Sources
from resjax.sharding import Layout
from resjax.typing import Array, PyTree

Views = Mapping[str, Array]
Strategy = Literal["carry", "depth_blocks", "history", "loop"]
OUTPUT = "output"  # the place of the last read, that of `Combinator.final`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DepthState:
  """The depth state of a combinator whose sources grow in number from layer to layer.

  Attributes:
    sources: what depth mixers read.
    running: pytree of fixed shape, carried from site to site (a running sum, a stream).
    opened: what `Combinator.open_block` made of the complete sources for the running depth block;
      None in a loop that does not call it.
  """

  sources: Sources
  running: PyTree = None
  opened: PyTree = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenContext:
  """What a combinator that mixes tokens must know of them; the others ignore it.

  Attributes:
    segment_ids: [B, T]; tokens mix within a segment. None: one segment per row.
    cache: in cached decoding what earlier tokens left, see `Combinator.decode_cache`; else None.
  """

  segment_ids: Array | None = None
  cache: PyTree = None


class Combinator(nnx.Module):
  """Base of all residual combinators.

  A decoder, or any other model with layers, drives it like this:

    state = c.init(x)                              # x: [B, T, D]
    for layer in range(c.num_layers):
      for site in c.sites:
        views, tape = c.read(state, layer, site)   # views["x"]: [B, T, D]
        normed = {k: norm(v) for k, v in views.items()}
        out = branch[site](normed)                 # [B, T, D]
        state = c.write(state, layer, site, out, normed=normed, tape=tape)
    y = c.final(state)                             # [B, T, D]

  `resjax.models.depth.run` is that loop as a scan. Leading axes are free: [..., D] works wherever
  [B, T, D] is written, as long as all calls agree; only a combinator with a `decode_cache` mixes
  tokens and needs [B, T, D]. A branch that wants views q, k and v (`view_names`) takes views["x"]
  for those that are not there.

  Attributes:
    num_layers: L.
    d_model: D.
    sites: names of the sites of a layer, in the order in which they run.
    layout: the mesh that kernels run on; default: one device.
    strategy: how a scan over layers treats the state. `carry`: fixed shape, any scan will do.
      `history`: a `DepthState` whose sources grow in every layer. `depth_blocks`: a `DepthState`
      whose sources grow after every `layers_per_block` layers. The last two need integer layers
      outside `resjax.models.depth`. `loop`: no scan, the parameters of layers differ in shape.
    pre_norm: whether branches normalise what they read. If not, `write` normalises (post-norm).
    branch_init_gain: factor on the initial value, output and MLP kernels of the branches.
    equals_standard_at_init: whether a fresh combinator computes what `standard` computes, up to
      the eps of norms, when every site starts with a scale-free pre-norm.
    decayed_parameters: names of the parameters that take weight decay; the others never do.
    per_layer: names of the parameters with a leading axis L of which layer i uses row i alone. A
      scan hands each layer a combinator that has just its row of them (leading axis 1), so that
      their gradients stay per layer and sharded rows are gathered when they are needed.
  """

  strategy: Strategy = "carry"
  pre_norm: bool = True
  branch_init_gain: float = 1.0
  equals_standard_at_init: bool = True
  decayed_parameters: tuple[str, ...] = ()
  per_layer: tuple[str, ...] = ()
  layers_per_block: int = 1

  def __init__(
    self,
    *,
    num_layers: int,
    d_model: int,
    sites: tuple[str, ...] = ("attention", "mlp"),
    layout: Layout | None = None,
  ):
    """Checks and keeps the sizes that every combinator has."""
    if num_layers < 1 or d_model < 1:
      raise ValueError(
        f"num_layers={num_layers} and d_model={d_model} must be at least 1; "
        "set config.model.num_layers and config.model.d_model"
      )
    if isinstance(sites, str) or not sites or len(set(sites)) != len(sites):
      raise ValueError(f"sites={sites!r} must be one or more different names")
    self.num_layers = num_layers
    self.d_model = d_model
    self.sites = tuple(sites)
    self.layout = Layout() if layout is None else layout

  @abc.abstractmethod
  def init(self, x: Array, tokens: TokenContext | None = None) -> PyTree:
    """Returns the depth state before the first site.

    Args:
      x: embeddings [B, T, D].
      tokens: for combinators that mix tokens; None: one segment per row, no cache.
    """

  @abc.abstractmethod
  def read(self, state: PyTree, layer: int | Array, site: str) -> tuple[Views, Any]:
    """Returns what a site reads: views [B, T, D] by `view_names`, and a tape for `write`."""

  @abc.abstractmethod
  def write(
    self,
    state: PyTree,
    layer: int | Array,
    site: str,
    out: Array,
    *,
    normed: Views | None = None,
    tape: Any = None,
  ) -> PyTree:
    """Returns the depth state after a site.

    Args:
      state: the state that `read` saw.
      layer: 0..L-1; may be traced.
      site: one of `sites`.
      out: the branch's output [B, T, D].
      normed: the normalised views that the branch saw, those that it did not use left out.
      tape: the second output of the matching `read`.
    """

  @abc.abstractmethod
  def final(self, state: PyTree) -> Array:
    """Returns the output of all layers [B, T, D], before the final norm."""

  def final_after(self, state: PyTree, layer: int | Array, site: str) -> Array:
    """Returns the output [B, T, D] that the layers would have if they ended after a site.

    After the last site of the last layer it is that of `final`. Where `final` mixes sources, those
    that are not there yet are left out; each combinator says how.

    Args:
      state: what `write` returned for the site; a scan over layers has not closed its depth block.
      layer: 0..L-1; may be traced.
      site: one of `sites`.
    """
    return self.final(state)

  def source_names(self) -> tuple[str, ...]:
    """Returns the names of the N sources that `depth_weights` weighs; empty without any."""
    return ()

  def depth_weights(self, state: PyTree, layer: int | Array, site: str) -> Array | None:
    """Returns how much a site reads of every source, for plots: no gradient, one mean over heads.

    Args:
      state: what `read` sees at the site.
      layer: 0..L-1, may be traced; L for the last read.
      site: one of `sites`, or `OUTPUT` for the last read.

    Returns:
      [N, ...], broadcasts against [N, B, T]; 0 for sources that are not there yet. None: the site
      weighs no sources.
    """
    return None

  def open_block(self, sources: Sources) -> tuple[Sources, PyTree]:
    """Returns the sources, and what all sites of a depth block together make of them, or None.

    A scan calls it before the first layer of a block, where `per_layer` parameters have a row for
    each layer of the block, and hands the result to its sites as `DepthState.opened`.

    Args:
      sources: those complete before the block.
    """
    return sources, None

  def close_block(self, state: DepthState) -> DepthState:
    """Returns the state after a depth block, its sources appended (`history`: already there)."""
    return state

  def view_names(self, site: str) -> tuple[str, ...]:
    """Returns the names of the views that `read` gives a site: x, and q, k, v where they differ."""
    return ("x",)

  def num_parameters(self) -> int:
    """Returns the number of parameters, see `resjax.combinators.costs`."""
    return costs.num_parameters(self)

  def state_bytes_per_token(self, dtype: jax.typing.DTypeLike) -> int:
    """Returns the bytes of the depth state after the last layer for one token in this dtype."""
    return costs.state_bytes_per_token(self, dtype)

  def flops_per_token(self) -> int:
    """Returns the forward FLOPs of all reads and writes for one token.

    They are counted from the trace of `read`, `write` and `final` (`resjax.combinators.costs` says
    how). A combinator that runs a kernel of its own, into which the count cannot look, overrides
    this method.
    """
    return costs.flops_per_token(self)

  def decode_cache(self, batch_size: int, dtype: jax.typing.DTypeLike) -> PyTree:
    """Returns what must survive from token to token in decoding, before the first token.

    None: nothing, because all mixing is within a token.

    Args:
      batch_size: B.
      dtype: of the activations.
    """
    return None

  def next_cache(self, state: PyTree) -> PyTree:
    """Returns the cache for the tokens that follow, from the state after the last layer."""
    return None

  @property
  def num_sublayers(self) -> int:
    """L times the number of sites."""
    return self.num_layers * len(self.sites)

  def _row(self, parameter: nnx.Variable, layer: int | Array, site: str) -> Array:
    """Returns parameter[layer, site] of a [L or 1, sites, ...] parameter."""
    return self._layer_row(parameter, layer)[self.sites.index(site)]

  def _layer_row(self, parameter: nnx.Variable, layer: int | Array) -> Array:
    """Returns parameter[layer]; a parameter with one row is already that layer's."""
    value = parameter[...]
    return value[0] if value.shape[0] == 1 else value[layer]


def check_option(name: str, value: Any, ok: bool, allowed: str) -> None:
  """Raises a ValueError that names option, value and what is allowed, unless `ok`."""
  if not ok:
    raise ValueError(f"{name}={value!r} is out of range; allowed: {allowed}")


def check_flag(name: str, value: Any) -> None:
  """Raises a ValueError unless an option is True or False."""
  check_option(name, value, isinstance(value, bool), "True, False")


def check_layer(layer: int | Array, sources: Sources) -> None:
  """Raises a ValueError where sources cannot grow: under a trace, without a bank of `depth.run`."""
  if not isinstance(layer, int) and sources.bank is None:
    raise ValueError(
      f"layer={layer!r} is traced, but the sources grow from layer to layer; "
      "loop over Python ints, or scan with resjax.models.depth.run"
    )
