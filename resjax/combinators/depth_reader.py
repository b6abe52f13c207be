"""Base classes of the systems that attend over depth: pseudo-queries, and depth blocks."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.combinators.base import OUTPUT, Layer, Strategy, check_option
from resjax.combinators.pre_norm import PreNorm
from resjax.combinators.source import DepthState, SourceCombinator
from resjax.kernels.depth_attention import (
  IMPLEMENTATIONS,
  Sources,
  depth_attention,
  depth_attention_block,
  has_block_kernel,
  two_phase_moves_less,
)
from resjax.typing import Array, PyTree, wide_dtype

Flag = bool | Array
Reader = Mapping[str, Any]  # the parameters of one read, arrays by name: query, key_scale [D]
TWO_PHASE = ("auto", "always", "never")
VIEWS = {
  "x": (),
  "qk_v": ("v",),
  "qkv": ("k", "v"),
}  # the views that have a reader beside that of x


class DepthReader(SourceCombinator):
  """A combinator with one pseudo-query and key gain per site.

  A subclass may offer the option `views`, the inputs of the attention, which is the first site of a
  layer: `x` is one read for all; `qk_v` gives the values a second reader, with a query and gain of
  its own; `qkv` gives keys and values one each. The queries read x. It calls `_add_views` in its
  `__init__`, and `_attend` for each of `view_names(site)` in its `read`.

  Args:
    num_heads: H, a divisor of D.
    eps: added to the mean square of a source in its norm; > 0.
    implementation: of `depth_attention`; `auto` takes the best that can run.
  """

  per_layer: tuple[str, ...] = ("query", "key_scale")
  own_readers: tuple[str, ...] = ()  # the views that have a reader beside that of x

  def __init__(
    self, *, num_heads: int = 1, eps: float = 1e-6, implementation: str = "auto", **options: Any
  ):
    super().__init__(**options)
    check_num_heads(num_heads, self.d_model)
    check_option("eps", eps, eps > 0, "eps > 0")
    known = implementation in ("auto", *IMPLEMENTATIONS)
    check_option("implementation", implementation, known, ", ".join(("auto", *IMPLEMENTATIONS)))
    self.num_heads = num_heads
    self.eps = eps
    self.implementation = implementation
    per_site = (self.num_layers, len(self.sites), self.d_model)
    self.query = nnx.Param(jnp.zeros(per_site))  # at zero every read is a uniform mean
    self.key_scale = nnx.Param(jnp.ones(per_site))

  def _add_views(self, views: str) -> None:
    """Adds the readers of k and v: `view_query` and `view_key_scale` [L, number of them, D]."""
    check_option("views", views, views in VIEWS, ", ".join(VIEWS))
    self.own_readers = VIEWS[views]
    if self.own_readers:
      shape = (self.num_layers, len(self.own_readers), self.d_model)
      self.view_query = nnx.Param(jnp.zeros(shape))
      self.view_key_scale = nnx.Param(jnp.ones(shape))
      self.per_layer += ("view_query", "view_key_scale")

  def view_names(self, site: str) -> tuple[str, ...]:
    """See `Combinator.view_names`."""
    return ("x", *self.own_readers) if site == self.sites[0] else ("x",)

  def _reader(self, layer: Layer, site: str, view: str = "x") -> Reader:
    """Returns the parameters of the read that gives a site a view."""
    if view == "x":
      return {name: self._row(getattr(self, name), layer, site) for name in ("query", "key_scale")}
    index = self.own_readers.index(view)
    rows = {"query": self.view_query, "key_scale": self.view_key_scale}
    return {name: self._layer_row(rows[name], layer)[index] for name in rows}

  def source_names(self) -> tuple[str, ...]:
    """See `Combinator.source_names`."""
    return ("embedding", *self._written())

  def _written(self) -> tuple[str, ...]:
    """Returns the names of the sources that sites write."""
    return tuple(f"{layer} {site}" for layer in range(self.num_layers) for site in self.sites)

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> Array | None:
    """See `Combinator.depth_weights`. They are those of view x."""
    if site == OUTPUT:
      return None
    rows = self._softmax(state.sources, layer, site)
    return state.sources.in_source_order(rows, len(self.source_names()))

  def _softmax(self, sources: Sources, layer: Layer, site: str, last_valid: Flag = True) -> Array:
    """Returns the weights of the slots [slots, ...] at a site."""
    return self._softmax_with(self._reader(layer, site), sources, last_valid)

  def _softmax_with(self, reader: Reader, sources: Sources, last_valid: Flag = True) -> Array:
    query = reader["query"] * reader["key_scale"]
    valid = sources.valid()
    valid = valid.at[-1].set(valid[-1] & last_valid)
    logits = jnp.concatenate([self._logits(query, group) for group in sources.groups()])
    valid = valid.reshape(-1, *(1,) * (logits.ndim - 1))
    return jnp.mean(jax.nn.softmax(jnp.where(valid, logits, -jnp.inf), axis=0), axis=-1)

  def _logits(self, query: Array, group: Array) -> Array:
    """Returns w · RMS(v) per head [n, ..., H] for sources [n, ..., D]."""
    wide = group.astype(wide_dtype(group))
    per_head = (wide * query).reshape(*wide.shape[:-1], self.num_heads, -1)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return jnp.sum(per_head, axis=-1) * jax.lax.rsqrt(mean_square + self.eps)

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

    With a norm it returns RMS(h) ⊙ scale in place of what is read, h.
    """
    return self._attend_with(self._reader(layer, site, view), sources, last_valid, norm)

  def _attend_with(
    self,
    reader: Reader,
    sources: Sources,
    last_valid: Flag = True,
    norm: PreNorm | None = None,
  ) -> Any:
    return depth_attention(
      sources,
      **reader,
      num_heads=self.num_heads,
      last_valid=last_valid,
      return_sources=True,
      **self._kernel_options(norm),
    )

  def _kernel_options(self, norm: PreNorm | None = None) -> dict[str, Any]:
    """Returns the options that every read has, and those that a norm adds."""
    implementation = None if self.implementation == "auto" else self.implementation
    options = {"eps": self.eps, "layout": self.layout, "implementation": implementation}
    if norm is None:
      return options
    return options | {"out_norm_scale": norm.scale, "out_norm_eps": norm.eps}


class DepthBlocks(DepthReader):
  """A reader that completes a source after every `layers_per_block` layers, and at the end.

  Args:
    layers_per_block: layers of one depth block, 1..L; the last block may be shorter.
    two_phase: whether a scan reads the complete sources once for all sites of a block; the function
      is the same up to rounding. `auto` does so where a kernel can run and moves fewer bytes.
      `always` needs one head, and uses plain JAX where no kernel can run. `never` reads all sources
      at every site.
  """

  strategy: Strategy = "depth_blocks"

  def __init__(self, *, layers_per_block: int = 3, two_phase: str = "auto", **options: Any):
    super().__init__(**options)
    in_range = 1 <= layers_per_block <= self.num_layers
    check_option("layers_per_block", layers_per_block, in_range, f"1..{self.num_layers} (layers)")
    check_option("two_phase", two_phase, two_phase in TWO_PHASE, ", ".join(TWO_PHASE))
    fits = two_phase != "always" or self.num_heads == 1
    check_option("two_phase", two_phase, fits, f"auto, never with num_heads={self.num_heads}")
    self.layers_per_block = layers_per_block
    self.two_phase = two_phase

  def open_block(self, sources: Sources) -> tuple[Sources, PyTree]:
    """See `Combinator.open_block`. The first of two phases is the reads of all sites."""
    queries, key_scales = map(self._block_rows, ("query", "key_scale"))
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
    on_average = (self.num_blocks + 1) / 2  # before the blocks 1, 2, ... sources are complete
    moves_less = two_phase_moves_less(on_average, len(queries))
    options = self._kernel_options()
    options.pop("eps")
    return self.num_heads == 1 and moves_less and has_block_kernel(sources, queries, **options)

  def _block_rows(self, name: str) -> Array:
    """Returns the rows [reads, D] of a parameter of all reads of a depth block."""
    rows = getattr(self, name)[...]
    if self.own_readers:
      rows = jnp.concatenate([rows, getattr(self, f"view_{name}")[...]], axis=1)
    return rows.reshape(-1, self.d_model)

  def _slot(self, layer: Layer, site: str, view: str = "x") -> Layer:
    """Returns the number of a read among those of its depth block."""
    per_layer = len(self.sites) + len(self.own_readers)
    number = self.sites.index(site)
    if view != "x":
      number = len(self.sites) + self.own_readers.index(view)
    return layer % self.layers_per_block * per_layer + number

  def _written(self) -> tuple[str, ...]:
    return tuple(f"block {number}" for number in range(self.num_blocks))

  @property
  def num_blocks(self) -> int:
    """The number of depth blocks, which counts a shorter last one."""
    return -(-self.num_layers // self.layers_per_block)

  def _close_if_ended(self, state: DepthState, layer: Layer, site: str) -> DepthState:
    """Closes the block after the last site of its last layer, unless a scan does so."""
    return self.close_block(state) if self._closes(layer, site) else state

  def _closes(self, layer: Layer, site: str) -> bool:
    """Returns whether `write` closes the block after a site."""
    if not isinstance(layer, int) or site != self.sites[-1]:
      return False
    return (layer + 1) % self.layers_per_block == 0 or layer + 1 == self.num_layers

  def final_after(self, state: DepthState, layer: Layer, site: str) -> Array:
    """See `Combinator.final_after`. The running block counts as completed."""
    return self.final(state if self._closes(layer, site) else self.close_block(state))


def check_num_heads(num_heads: int, d_model: int) -> None:
  """Raises a ValueError if the heads cannot share the channels evenly."""
  divides = num_heads >= 1 and d_model % num_heads == 0
  check_option("num_heads", num_heads, divides, f"divisors of d_model={d_model}")
