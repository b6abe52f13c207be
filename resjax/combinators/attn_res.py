"""Attention Residuals: depth attention over all earlier outputs, or over sums of blocks of them."""

import jax.numpy as jnp
from flax import nnx

from resjax.combinators.base import Combinator, DepthState, check_layer, check_option
from resjax.kernels.depth_attention import Sources, depth_attention
from resjax.typing import Array


class _DepthReader(Combinator):
  """One pseudo-query and key gain per site, and one of each for the output."""

  per_layer = ("query", "key_scale")

  def __init__(self, *, eps: float = 1e-6, rngs: nnx.Rngs | None = None, **sizes):
    super().__init__(**sizes)
    check_option("eps", eps, eps > 0, "eps > 0")
    self.eps = eps
    per_site = (self.num_layers, len(self.sites), self.d_model)
    self.query = nnx.Param(jnp.zeros(per_site))  # zero: a uniform mean, i.e. `standard`
    self.key_scale = nnx.Param(jnp.ones(per_site))
    self.final_query = nnx.Param(jnp.zeros(self.d_model))
    self.final_key_scale = nnx.Param(jnp.ones(self.d_model))

  def _attend(self, sources: Sources, layer, site, last_valid=True) -> Array:
    query = self._row(self.query, layer, site)
    key_scale = self._row(self.key_scale, layer, site)
    return depth_attention(sources, query, key_scale=key_scale, eps=self.eps, last_valid=last_valid)

  def _attend_final(self, sources: Sources) -> Array:
    return depth_attention(
      sources, self.final_query[...], key_scale=self.final_key_scale[...], eps=self.eps
    )

  def num_parameters(self):
    """2 D (L · sites + 1): query and key gain of every reader."""
    return 2 * self.d_model * (self.num_sublayers + 1)

  def _read_flops(self, num_sources: int) -> int:
    """6 D per source: square-sum, dot product and weighted sum."""
    return 6 * num_sources * self.d_model


class AttnRes(_DepthReader):
  """h_i = Σ_j softmax_j(w_i · γ_i ⊙ RMS(v_j)) v_j over the embedding and all earlier outputs.

  Sources v_0 = x and v_j = the output of sublayer j; every sublayer i and the output have their
  own query w_i [D] and key gain γ_i [D]. The first reader has one source, so its parameters get
  no gradient.

  Stores all N = L · sites + 1 sources: N D values per token. Parameters: 2 D N, queries zero and
  gains one at init, which makes every read a uniform mean and, under scale-free pre-norms, the
  network a `standard` one. FLOPs: 6 D per source, reader and token.

  Args:
    eps: added to the mean square of a source in its norm; > 0.

  Raises:
    ValueError: eps out of range.

  Source: Attention Residuals (Full), arXiv 2603.15031.
  """

  strategy = "history"

  def init(self, x, tokens=None):
    """See `Combinator.init`."""
    return DepthState(Sources(recent=(x,)))

  def read(self, state, layer, site):
    """See `Combinator.read`."""
    return {"x": self._attend(state.sources, layer, site)}, None

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    """See `Combinator.write`."""
    check_layer(layer, state.sources)
    return DepthState(state.sources.append(out))

  def final(self, state):
    """See `Combinator.final`."""
    return self._attend_final(state.sources)

  def state_bytes_per_token(self, itemsize):
    """(L · sites + 1) D values."""
    return (self.num_sublayers + 1) * self.d_model * itemsize

  def flops_per_token(self):
    """6 D Σ_n n over the 1..L · sites + 1 sources of the readers."""
    return sum(self._read_flops(n) for n in range(1, self.num_sublayers + 2))


class BlockAttnRes(_DepthReader):
  """h_i = depth attention over [x, sums of completed depth blocks, running sum of this block].

  A depth block is `layers_per_block` layers; its source is the sum of its sublayers' outputs. The
  last block may be shorter. The first sublayer of a block does not see the (empty) running sum.
  The output read sees x and all block sums.

  Stores N + 1 = ⌈L / layers_per_block⌉ + 1 sources and the running sum: (N + 2) D values per
  token. Parameters: 2 D (L · sites + 1), init as in `attn_res`, hence equal to `standard` at init.
  FLOPs: 6 D per source, reader and token, and D per write.

  Args:
    layers_per_block: layers summed into one source, 1..L. (The paper's figure counts sublayers.)
    eps: added to the mean square of a source in its norm; > 0.

  Raises:
    ValueError: layers_per_block or eps out of range.

  Source: Attention Residuals (Block), arXiv 2603.15031.
  """

  strategy = "depth_blocks"

  def __init__(self, *, layers_per_block: int = 3, **options):
    super().__init__(**options)
    in_range = 1 <= layers_per_block <= self.num_layers
    check_option("layers_per_block", layers_per_block, in_range, f"1..{self.num_layers} (layers)")
    self.layers_per_block = layers_per_block

  @property
  def num_blocks(self) -> int:
    """Number of depth blocks, a shorter last one included."""
    return -(-self.num_layers // self.layers_per_block)

  def init(self, x, tokens=None):
    """See `Combinator.init`."""
    return DepthState(Sources(recent=(x,)), jnp.zeros_like(x))

  def close_block(self, state):
    """See `Combinator.close_block`: the running sum becomes a source."""
    sources = state.sources.append(state.running)
    return DepthState(sources, jnp.zeros_like(state.running))

  def read(self, state, layer, site):
    """See `Combinator.read`."""
    started = (layer % self.layers_per_block != 0) | (site != self.sites[0])
    sources = state.sources.append(state.running)
    return {"x": self._attend(sources, layer, site, last_valid=started)}, None

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    """See `Combinator.write`; an integer layer at the end of a block completes its source."""
    check_layer(layer, state.sources)
    state = DepthState(state.sources, state.running + out)
    ends_layer = isinstance(layer, int) and site == self.sites[-1]
    ends_block = ends_layer and (
      (layer + 1) % self.layers_per_block == 0 or layer + 1 == self.num_layers
    )
    return self.close_block(state) if ends_block else state

  def final(self, state):
    """See `Combinator.final`."""
    return self._attend_final(state.sources)

  def state_bytes_per_token(self, itemsize):
    """(⌈L / layers_per_block⌉ + 2) D values."""
    return (self.num_blocks + 2) * self.d_model * itemsize

  def flops_per_token(self):
    """6 D per source and reader, D per write."""
    reads = self._read_flops(self.num_blocks + 1)
    for sublayer in range(self.num_sublayers):
      layer, site = divmod(sublayer, len(self.sites))
      block, layer = divmod(layer, self.layers_per_block)
      reads += self._read_flops(block + 1 + (layer > 0 or site > 0))
    return reads + self.num_sublayers * self.d_model
