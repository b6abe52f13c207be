"""Base classes of the systems that attend over depth: pseudo-queries, and depth blocks."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx

from resjax.base import Array, PyTree
from resjax.combinators.base import (
  OUTPUT,
  Layer,
  Norms,
  PreNorm,
  SourceWeights,
  Strategy,
  Stream,
  Views,
  are_pre_norms,
)
from resjax.combinators.checks import check_choice, check_option
from resjax.combinators.depth_scores import DepthScores, Flag, Reader
from resjax.combinators.source import DepthState, SourceMixer
from resjax.kernels import IMPLEMENTATIONS
from resjax.kernels.depth_attention import (
  Sources,
  depth_attention,
  depth_attention_block,
  depth_attention_merge,
  depth_attention_row,
  has_block_kernel,
  two_phase_moves_less,
)

TWO_PHASE = ("auto", "always", "never")
# With `history` the first site of a layer has nothing to merge: its result of phase 1 is copied and
# normalised outside of kernels, for about as many bytes as two phases of so few sources save.
_FEW = 9
VIEWS = {"x": (), "qk_v": ("v",), "qkv": ("k", "v")}  # the views with a reader beside that of x


class DepthReader(SourceMixer):
  """A combinator with one reader per site: a pseudo-query and a key gain, unless `scores` differ.

  A subclass may offer the option `views`, the inputs of the attention, which is the first site of a
  layer: `x` is one read for all; `qk_v` gives the values a second reader, with a query and gain of
  its own; `qkv` gives keys and values one each. The queries read x. It calls `_add_views` in its
  `__init__`, and `_attend` for each of `view_names(site)` in its `read`.

  Args:
    num_heads: H, a divisor of D.
    eps: added to the mean square of a source in its norm; > 0.
    implementation: of `depth_attention`; `auto` takes the best that can run.

  Attributes:
    scores: the rule by which all readers weigh sources. A subclass that has options for it sets it
      before it calls this class's `__init__`, which makes the parameters.
    own_readers: the views that have a reader beside that of x.
    query: of the sites, [L, sites, D].
    key_scale: the gains of their keys, [L, sites, D].
  """

  family = "depth readers"
  query: nnx.Param
  key_scale: nnx.Param
  scores: DepthScores = DepthScores()
  own_readers: tuple[str, ...] = ()

  def __init__(
    self, *, num_heads: int = 1, eps: float = 1e-6, implementation: str = "auto", **options: Any
  ):
    super().__init__(**options)
    check_num_heads(num_heads, self.d_model)
    self.eps = check_option("eps", eps, eps > 0, "eps > 0")
    self.implementation = check_choice("implementation", implementation, ("auto", *IMPLEMENTATIONS))
    self.num_heads = num_heads
    self.scores = dataclasses.replace(self.scores, width=self.d_model, num_heads=num_heads, eps=eps)
    self.scores.check()
    plain = self.scores.plain
    fits = not plain or implementation in ("auto", "reference")
    check_option("implementation", implementation, fits, f"auto, reference with {plain}")
    self.per_layer += self._add_readers("", self.num_layers, len(self.sites))

  def _add_readers(self, prefix: str, *lead: int) -> tuple[str, ...]:
    """Adds the parameters of readers, with a prefix and leading axes, and returns their names."""
    shapes = self.scores.shapes(self.num_sublayers + 1)
    for name, shape in shapes.items():
      fill = jnp.ones if name == "key_scale" else jnp.zeros
      axes: Any = {"axes": ("embed_param", None)} if name == "query_weight" else {}
      setattr(self, prefix + name, nnx.Param(fill((*lead, *shape)), **axes))
    names = tuple(prefix + name for name in shapes)
    self.decayed_parameters += tuple(name for name in names if name.endswith("query_weight"))
    return names

  def _add_views(self, views: str) -> None:
    """Adds the readers of k and v: `view_query` [L, number of them, D], and so on."""
    check_choice("views", views, VIEWS)
    self.own_readers = VIEWS[views]
    if self.own_readers:
      self.per_layer += self._add_readers("view_", self.num_layers, len(self.own_readers))

  def view_names(self, site: str) -> tuple[str, ...]:
    return ("x", *self.own_readers) if site == self.sites[0] else ("x",)

  def _reader(self, layer: Layer, site: str, view: str = "x") -> Reader:
    """Returns the parameters of the read that gives a site a view."""
    if view == "x":
      return {name: self._row(p, layer, site) for name, p in self._readers("").items()}
    index = self.own_readers.index(view)
    return {name: self._layer_row(p, layer)[index] for name, p in self._readers("view_").items()}

  def _readers(self, prefix: str) -> dict[str, nnx.Param]:
    """Returns the parameters whose names begin with `prefix`, by the rest of their names."""
    return {name: getattr(self, prefix + name) for name in self.scores.shapes()}

  def source_names(self) -> tuple[str, ...]:
    return ("embedding", *self._written())

  def _written(self) -> tuple[str, ...]:
    return tuple(f"{layer} {site}" for layer in range(self.num_layers) for site in self.sites)

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> SourceWeights | None:
    """See `Combinator.depth_weights`; these are the weights of the view x."""
    if site == OUTPUT:
      return None
    rows = self._softmax(state.sources, layer, site)
    return state.sources.in_source_order(rows, len(self.source_names()))

  def _softmax(self, sources: Sources, layer: Layer, site: str, last_valid: Flag = True) -> Array:
    """Returns the weights of the slots [slots, ...] at a site, their mean over heads."""
    return jnp.mean(self.scores.weigh(self._reader(layer, site), sources, last_valid), axis=-1)

  def _attend(
    self,
    sources: Sources,
    layer: Layer,
    site: str,
    last_valid: Flag = True,
    norm: PreNorm | None = None,
    view: str = "x",
  ) -> tuple[Array, Sources]:
    """Returns a view of a site, and the sources for the next reader (`return_sources`).

    The view is h, the weighted sum of the sources, or RMS(h) ⊙ scale if a norm is given.
    """
    return self._attend_with(self._reader(layer, site, view), sources, last_valid, norm)

  def _attend_with(
    self, reader: Reader, sources: Sources, last_valid: Flag = True, norm: PreNorm | None = None
  ) -> Any:
    if self.scores.plain:
      h = self.scores.read(reader, sources, last_valid)
      return h if norm is None else norm(h), sources
    return depth_attention(
      sources,
      **self.scores.folded(reader),
      num_heads=self.num_heads,
      last_valid=last_valid,
      return_sources=True,
      **self._kernel_options(norm),
    )

  def _slot(self, layer: Layer, site: str, view: str = "x") -> Layer:
    """Returns the index of a read within the reads of its depth block."""
    place = layer % self.layers_per_block if self.layers_per_block > 1 else 0
    per_layer = len(self.sites) + len(self.own_readers)
    number = self.sites.index(site)
    if view != "x":
      number = len(self.sites) + self.own_readers.index(view)
    return place * per_layer + number

  def only_direct(self) -> str:
    """Returns the option for which every site has to read all sources; "" without such a one."""
    if self.num_heads > 1:
      return f"num_heads={self.num_heads}"
    if self.strategy == "history" and len(self.sites) > 2:
      return f"{len(self.sites)} sites"  # the last of which would merge several sources
    return self.scores.plain

  def _merged(
    self, state: DepthState, layer: Layer, site: str, norm: PreNorm | None = None, view: str = "x"
  ) -> tuple[Array, DepthState]:
    """Returns what `_attend` would, where all reads of complete sources opened the block.

    It is the site's row of these reads, merged with the source that the layer has appended since,
    if there is one; and the state for the next reader.
    """
    slot, sources = self._slot(layer, site, view), state.sources
    if not sources.recent:
      h, opened = depth_attention_row(state.opened, slot)
      return h if norm is None else norm(h), dataclasses.replace(state, opened=opened)
    complete, recent = sources.pop()
    h, recent, opened = depth_attention_merge(
      state.opened,
      slot,
      recent,
      **self.scores.folded(self._reader(layer, site, view)),
      **self._kernel_options(norm),
    )
    return h, dataclasses.replace(state, sources=complete.append(recent), opened=opened)

  def _kernel_options(self, norm: PreNorm | None = None) -> dict[str, Any]:
    """Returns the options that every read has, and those that a norm adds."""
    implementation = None if self.implementation == "auto" else self.implementation
    options = {"eps": self.eps, "layout": self.layout, "implementation": implementation}
    if norm is None:
      return options
    return options | {"out_norm_scale": norm.scale, "out_norm_eps": norm.eps}


class OutputReader(DepthReader):
  """A reader with options for its `scores` that has a reader for the output too."""

  needs_pre_norms = True

  def __init__(
    self, *,
    value_norm: bool = False, key_norm: str = "gain", key_rank: int = 0, scale: str = "one",
    temperature: float = 1.0, weights: str = "softmax", dynamic_query: bool = False,
    views: str = "x", **options: Any,
  ):  # fmt: skip
    self.scores = dataclasses.replace(
      self.scores, value_norm=value_norm, key_norm=key_norm, key_rank=key_rank, scale=scale,
      temperature=temperature, weights=weights, dynamic_query=dynamic_query,
    )  # fmt: skip
    super().__init__(**options)
    self._add_views(views)
    self._add_readers("final_")
    self.equals_standard_at_init = self.scores.is_neutral

  @abc.abstractmethod
  def _read(
    self, state: DepthState, layer: Layer, site: str, norms: Mapping[str, PreNorm]
  ) -> tuple[Views, Any]:
    """Returns the views, each through its norm if it has one, and the tape of `read`."""

  def read(self, state: DepthState, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`. The tape holds the sources for the next reader."""
    return self._read(state, layer, site, {})

  def read_normed(
    self, state: DepthState, layer: Layer, site: str, norms: Norms
  ) -> tuple[Views, Any]:
    """See `Combinator.read_normed`. A `PreNorm` is part of the read."""
    if not are_pre_norms(norms):
      return super().read_normed(state, layer, site, norms)
    views, tape = self._read(state, layer, site, norms)
    return {name: views[name] for name in norms}, tape

  def final(self, state: DepthState) -> Stream:
    return self._attend_with(self._reader(self.num_layers, OUTPUT), state.sources)[0]

  def _reader(self, layer: Layer, site: str, view: str = "x") -> Reader:
    if site == OUTPUT:
      return {name: p[...] for name, p in self._readers("final_").items()}
    return super()._reader(layer, site, view)

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> SourceWeights | None:
    """See `Combinator.depth_weights`. The output reads too."""
    if site != OUTPUT:
      return super().depth_weights(state, layer, site)
    rows = self._softmax(state.sources, layer, site)
    return state.sources.in_source_order(rows, len(self.source_names()))


class TwoPhaseReader(DepthReader):
  """A reader that may read complete sources once for all sites of a depth block.

  With the strategy `history` a block is a layer.

  Args:
    two_phase: whether a scan reads the complete sources once for all sites of a block; the function
      is the same up to rounding. `auto` does so where a kernel can run and moves fewer bytes.
      `always` needs one head and scores that kernels cover, and uses plain JAX where none can run.
      `never` reads all sources at every site.
  """

  def __init__(self, *, two_phase: str = "auto", **options: Any):
    super().__init__(**options)
    self.two_phase = check_choice("two_phase", two_phase, TWO_PHASE)
    reason = self.only_direct()
    fits = two_phase != "always" or not reason
    check_option("two_phase", two_phase, fits, f"auto, never with {reason}")

  def open_block(self, sources: Sources) -> tuple[Sources, PyTree]:
    """See `SourceCombinator.open_block`. The first of two phases is the reads of all sites."""
    if self.only_direct():
      return sources, None
    queries, key_scales = self.scores.folded(self._block_reader(sources)).values()
    if not self._in_two_phases(sources, queries):
      return sources, None
    returned: Any = depth_attention_block(  # a pair, because of return_sources
      sources, queries, key_scales=key_scales, return_sources=True, **self._kernel_options()
    )
    reads, sources = returned
    return sources, reads

  def _in_two_phases(self, sources: Sources, queries: Array) -> bool:
    """Returns whether a scan reads complete sources once per block, see `two_phase`."""
    if self.two_phase != "auto":
      return self.two_phase == "always"
    options = self._kernel_options()
    options.pop("eps")
    return self.two_phases_move_less(len(queries)) and has_block_kernel(sources, queries, **options)

  def two_phases_move_less(self, num_reads: int) -> bool:
    """Returns whether a step moves less with two phases, where a block has so many reads."""
    history = self.strategy == "history"
    # Before the first block one source is complete.
    on_average = 1 + (len(self.sites) if history else 1) * (self.num_blocks - 1) / 2
    return two_phase_moves_less(on_average, num_reads) and (not history or on_average > _FEW)

  def _block_reader(self, sources: Sources) -> Reader:
    """Returns the parameters of all reads of a depth block, [reads, ...] each.

    Args:
      sources: those that are complete before the block.
    """
    prefixes = ("", "view_") if self.own_readers else ("",)
    parts = [self._readers(prefix) for prefix in prefixes]
    joined = {name: jnp.concatenate([p[name][...] for p in parts], 1) for name in parts[0]}
    return {name: rows.reshape(-1, *rows.shape[2:]) for name, rows in joined.items()}

  @property
  def num_blocks(self) -> int:
    """The number of depth blocks, which counts a shorter last one."""
    return -(-self.num_layers // self.layers_per_block)


class DepthBlocks(TwoPhaseReader):
  """A reader that completes a source after every `layers_per_block` layers, and at the end.

  Args:
    layers_per_block: layers of one depth block, 1..L; the last block may be shorter.
  """

  strategy: Strategy = "depth_blocks"

  def __init__(self, *, layers_per_block: int = 3, **options: Any):
    super().__init__(**options)
    in_range = 1 <= layers_per_block <= self.num_layers
    check_option("layers_per_block", layers_per_block, in_range, f"1..{self.num_layers} (layers)")
    self.layers_per_block = layers_per_block

  def _written(self) -> tuple[str, ...]:
    return tuple(f"block {number}" for number in range(self.num_blocks))

  def _close_if_ended(self, state: DepthState, layer: Layer, site: str) -> DepthState:
    """Closes the block after the last site of its last layer, unless a scan does so."""
    return self.close_block(state) if self._closes(layer, site) else state

  def _closes(self, layer: Layer, site: str) -> bool:
    """Returns whether `write` closes the block after a site."""
    if not isinstance(layer, int) or site != self.sites[-1]:
      return False
    return (layer + 1) % self.layers_per_block == 0 or layer + 1 == self.num_layers

  def final_after(self, state: DepthState, layer: Layer, site: str) -> Stream:
    """See `Combinator.final_after`. The running block counts as completed."""
    return self.final(state if self._closes(layer, site) else self.close_block(state))


def check_num_heads(num_heads: int, d_model: int) -> None:
  """Raises a ValueError if the heads cannot share the channels evenly."""
  divides = num_heads >= 1 and d_model % num_heads == 0
  check_option("num_heads", num_heads, divides, f"divisors of d_model={d_model}")
