"""MUDDFormer: multiway dynamic dense connections."""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import Array
from resjax.combinators.base import OUTPUT, Layer, SourceWeights, Stream, TokenContext, Views
from resjax.combinators.checks import check_choice, check_flag, check_option
from resjax.combinators.layer_mixing import LayerMixer
from resjax.combinators.numerics import project, rms_normalized, scaled_norm
from resjax.combinators.ragged import RaggedRows
from resjax.combinators.source import DepthState
from resjax.kernels.depth_attention import Sources, depth_sum

_VIEWS = ("q", "k", "v", "x")
_C = len(_VIEWS)
_MIX_SCALE = 0.001
_DIVERGED = 24  # layers with which the form without norms was seen to diverge


class MUDDFormer(LayerMixer):
  """view_c = Σ_{j≤i} (W2 gelu(W1 RMS(X_i)) + b)_cj X_j in layer i ≥ 1, for c = q, k, v, x.

  X_0 = x, and X_i is the stream at the end of layer i. The first site of a layer reads the views
  q, k and v; its stream starts at view x. Layer 0 reads X_0. The output is one more mix, a single
  view of X_0..X_L with weights from X_L. All weights differ from token to token, for C views of
  n = i + 1 sources: W1 [D, H], exact gelu, W2 [n, H, C], b [n, C].

  H = (⌊4 n / 64⌋ + 1) · 64 in `faithful`, as released. `stacked` takes H of n = L in every layer
  and stacks W1 to [L, D, H], so that a scan can run it; row 0 of that is not used and gets no
  gradient. W2 and b have no weights for sources that are not there. For the output n = L + 1,
  C = 1, in both.

  With `pre_post_norm` the sources are g_j ⊙ RMS(X_j), and what they are mixed to is added to X_i:
  the views q, k and v are X_i + mix_c, the view x and the output X_i + s_i ⊙ RMS(mix_x). Then b
  starts at zero, g at one and s at 0.001. The first mixes are zero, through whose norm gradients
  grow by 1 / √eps; the small s makes up for an eps of 1e-6.

  State: X_0..X_L and the stream: (L + 2) D values per token. Parameters, n from 2 to L: faithful
  Σ_n (D H_n + 4 n H_n), stacked L D H + 4 H Σ_n n, and both 4 Σ_n n + D H' + (H' + 1)(L + 1), H' of
  the output; with `pre_post_norm` (2 L + 2) D more. At init W1 is N(0, 1 / D), W2 zero and b
  one-hot at j = i, which is `standard`. With L = 32 and D = 2560 (2.8B) that is 8.8M faithful and
  16.6M stacked; the paper speaks of 0.23 %, which the rounding of H exceeds.

  Args:
    pre_post_norm: whether sources and mixes are normalised, as in the authors' configs with Llama's
      sizes. Without, 24 layers of 1024 diverged in hyper-connection-factory, where it was the best
      of eleven with; such depths are warned of.
    row_sizes: `stacked`, or `faithful`, the paper's sizes; it needs config.model.depth='loop'.
    eps: added to the mean squares of all norms; > 0. The norm in front of W1 has no gain; with
      `pre_post_norm` the released code has one, which W1 contains here.

  Raises:
    ValueError: row_sizes, pre_post_norm or eps out of range.

  Source: MUDDFormer, arXiv 2502.12170. The authors decay all parameters, here b is not; their MLP
  widths grow with depth, which is a matter of the model.
  """

  decayed_parameters: tuple[str, ...] = ("hidden", "output", "final_hidden", "final_output")

  def __init__(
    self,
    *,
    row_sizes: str = "stacked",
    pre_post_norm: bool = False,
    eps: float = 1e-6,
    rngs: nnx.Rngs,
    **options: Any,
  ):
    super().__init__(**options)
    self.row_sizes = check_choice("row_sizes", row_sizes, ("stacked", "faithful"))
    self.pre_post_norm = check_flag("pre_post_norm", pre_post_norm)
    self.eps = check_option("eps", eps, eps > 0, "eps > 0")
    depth, width = self.num_layers, self.d_model
    self.rows = RaggedRows.of([range(i + 1) if i else () for i in range(depth)], depth + 1)
    newest = np.eye(depth, depth + 1)[..., None] * np.full(_C, not pre_post_norm)
    self.bias = nnx.Param(jnp.asarray(self.rows.pack(newest)))
    draw = nnx.initializers.normal(width**-0.5)
    if row_sizes == "faithful":
      self.strategy = "loop"
      if depth == 1:  # only the output mixes
        self.decayed_parameters = ("final_hidden", "final_output")
      counts = range(2, depth + 1)
      shapes = [(width, _hidden_size(n)) for n in counts]
      self.hidden: Any = nnx.List([nnx.Param(draw(rngs.params(), shape)) for shape in shapes])
      self.output: Any = nnx.List([nnx.Param(jnp.zeros((n, _hidden_size(n), _C))) for n in counts])
    else:
      self.per_layer = ("hidden",)
      size = _hidden_size(depth)
      self.hidden = nnx.Param(draw(rngs.params(), (depth, width, size)), axes=("embed_param", None))
      self.output = nnx.Param(jnp.zeros((self.rows.size, size, _C)))
    size = _hidden_size(depth + 1)
    self.final_hidden = nnx.Param(draw(rngs.params(), (width, size)))
    self.final_output = nnx.Param(jnp.zeros((depth + 1, size, 1)))
    self.final_bias = nnx.Param(jnp.asarray(np.eye(depth + 1)[:, -1:] * (not pre_post_norm)))
    if pre_post_norm:
      self._make_norms()

  def _make_norms(self) -> None:
    """Makes g of the embedding and of every layer, and s of every layer and of the output."""
    shape = (self.num_layers, self.d_model)
    self.embedding_scale = nnx.Param(jnp.ones(self.d_model))
    self.source_scale = nnx.Param(jnp.ones(shape))
    self.mix_scale = nnx.Param(jnp.full(shape, _MIX_SCALE))
    self.final_mix_scale = nnx.Param(jnp.full(self.d_model, _MIX_SCALE))
    self.per_layer += ("source_scale", "mix_scale")

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DepthState:
    """See `Combinator.init`. A depth where this form diverged is warned of, once."""
    state = super().init(x, tokens)
    if not self.pre_post_norm:
      if self.num_layers >= _DIVERGED:
        warnings.warn(
          f"muddformer without pre_post_norm diverged with {_DIVERGED} layers in public, this has "
          f"{self.num_layers}; set config.model.residual.muddformer.pre_post_norm=True",
          stacklevel=1,
        )
      return state
    source = scaled_norm(x, self.embedding_scale[...], self.eps)
    return DepthState(Sources(recent=(source,)), state.running)

  def _append(self, sources: Sources, layer: Layer, output: Array) -> Sources:
    if self.pre_post_norm:
      output = scaled_norm(output, self._layer_row(self.source_scale, layer), self.eps)
    return sources.append(output)

  def view_names(self, site: str) -> tuple[str, ...]:
    return _VIEWS if site == self.sites[0] else ("x",)

  def _mix(self, state: DepthState, layer: Layer) -> Views:
    newest = state.running.stream
    if self.row_sizes == "faithful":
      _check_int(layer)
      if layer == 0:
        return dict.fromkeys(_VIEWS, newest)
    mixed = _dynamic_sums(self.eps, state.sources, newest, *self._weights_of(layer))
    if self.pre_post_norm:
      *views, x = mixed
      x = scaled_norm(x, self._layer_row(self.mix_scale, layer), self.eps)
      mixed = tuple(newest + view for view in (*views, x))
    return dict(zip(_VIEWS, mixed, strict=True))

  def _weights_of(self, layer: Layer) -> tuple[Array, Array, Array]:
    """Returns W1, W2 and b of a layer. With `faithful` the first layer has none."""
    bias = self.rows.row(self.bias[...], layer)
    if self.row_sizes == "faithful":
      return self.hidden[layer - 1][...], self.output[layer - 1][...], bias[: layer + 1]
    output = self.rows.row(self.output[...], layer)
    if not self.pre_post_norm:  # the first layer has no weights, and takes the embedding
      bias = bias + self.rows.newest_of_empty(layer)[:, None]
    return self._layer_row(self.hidden, layer), output, bias

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> SourceWeights | None:
    """See `Combinator.depth_weights`; these are the weights of the view x and may be negative.

    With `pre_post_norm` they are the weights of the mix, without the stream that it is added to.
    """
    newest, count = state.running.stream, self.num_layers + 1
    if site == OUTPUT:
      params = self.final_hidden[...], self.final_output[...], self.final_bias[...]
    elif site != self.sites[0]:
      return None
    elif self.row_sizes == "faithful" and layer == 0:
      return jnp.broadcast_to(jnp.eye(count)[0][:, None, None], (count, *newest.shape[:-1]))
    else:
      params = self._weights_of(layer)
    weights = _dynamic_weights(self.eps, newest, *params)[..., -1]
    return jnp.pad(weights, ((0, count - len(weights)), (0, 0), (0, 0)))

  def final(self, state: DepthState) -> Stream:
    return self._last_mix(state.sources, state.running.stream, self.num_layers + 1)

  def final_after(self, state: DepthState, layer: Layer, site: str) -> Stream:
    """See `Combinator.final_after`. The weights of the last mix belong to the newest sources."""
    return self._last_mix(self._ended(state, layer, site), state.running.stream, layer + 2)

  def _last_mix(self, sources: Sources, newest: Array, count: int | Array) -> Array:
    """Returns the mix of the output, over `count` sources with the weights of the newest ones."""
    missing = self.num_layers + 1 - count
    newest_first = [jnp.roll(p[...], -missing, 0) for p in (self.final_output, self.final_bias)]
    (mix,) = _dynamic_sums(self.eps, sources, newest, self.final_hidden[...], *newest_first)
    if not self.pre_post_norm:
      return mix
    return newest + scaled_norm(mix, self.final_mix_scale[...], self.eps)


def _hidden_size(num_sources: int) -> int:
  """Returns the next multiple of 64 above 4 per source."""
  return (4 * num_sources // 64 + 1) * 64


def _check_int(layer: Layer) -> None:
  if not isinstance(layer, int):
    raise ValueError(
      f"layer={layer!r} is traced, but row_sizes='faithful' has layers of different shape; "
      "loop over Python ints, or set row_sizes='stacked'"
    )


@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=(0,))
def _dynamic_sums(
  eps: float, sources: Sources, newest: Array, hidden: Array, output: Array, bias: Array
) -> tuple[Array, ...]:
  """Returns C weighted sums of all sources; the reverse pass stores only the arguments.

  Args:
    eps: of the norm.
    sources: n arrays [..., D].
    newest: the last of them.
    hidden: W1 [D, H].
    output: W2 [n, H, C].
    bias: b [n, C].
  """
  weights = sources.in_slot_order(_dynamic_weights(eps, newest, hidden, output, bias))
  return tuple(depth_sum(sources, weights[..., c, None]) for c in range(bias.shape[-1]))


def _dynamic_weights(eps: float, newest: Array, hidden: Array, output: Array, bias: Array) -> Array:
  """Returns the weights of the sources [n, ..., C], in their order."""
  normed = rms_normalized(newest, eps)
  inner = jax.nn.gelu(project("...d,dh->...h", normed, hidden), approximate=False)
  weights = project("...h,nhc->n...c", inner, output)
  return weights + bias.reshape(len(bias), *(1,) * (newest.ndim - 1), -1)
