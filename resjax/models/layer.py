"""The sublayers of a decoder's layer, and the branches that run them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Float

from resjax import combinators
from resjax.base import Array, PyTree
from resjax.base.sharding import Layout
from resjax.combinators import Norms, PreNorm
from resjax.kernels.self_attention import Window
from resjax.models.config import DecoderConfig
from resjax.models.decode_cache import FirstTokens, TokensInCache, TokensInRows
from resjax.models.values import ValueMixing, ValueRows
from resjax.nn import (
  MLP,
  Attention,
  Identity,
  Keys,
  KeyValues,
  MoE,
  Norm,
  NormGate,
  Rope,
  Rotation,
  Routing,
  ValueMixer,
  make_norm,
)

# The sublayers of a site that has several; every other site is its only sublayer.
_PARTS = {"parallel": ("attention", "mlp")}


class Layer(nnx.Module):
  """The sublayers of a layer with their norms, which `Branches` runs.

  The sites are `attention` and `mlp`; or `parallel`, whose branch is the sum of both (GPT-J,
  GPT-NeoX, arXiv 2204.06745), each with norms of its own. If the config has a window for it, the
  site `short_swa` comes first: causal attention over the last few tokens (arXiv 2603.16039), with
  as many key heads as query heads. A sublayer has a pre-norm for every view that it uses unless
  `config.pre_norm` or the combinator is without them, a gate behind each of them if
  `config.norm_gate` asks for it, and a norm of its output if `config.post_norm` asks for one.

  Args:
    config: the sizes and choices of the decoder.
    combinator: tells which views a site is given, and whether branches have pre-norms.
    layout: the mesh and sharding rules of the activations.
    rngs: the source of the initial values.
  """

  short_swa: Attention  # exists where config.short_swa.window > 0
  mlp: MLP  # of the layers without a mixture of experts; see `resjax.models.feed_forward`
  moe: MoE  # of those with one

  def __init__(
    self,
    config: DecoderConfig,
    combinator: combinators.Combinator,
    layout: Layout,
    rngs: nnx.Rngs,
  ):
    self.layout, self.short_window = layout, Window((config.short_swa.window,))
    self.depth_ratio = config.depth_ratio
    keys, gain = Keys(rngs), combinator.branch_init_gain
    common: dict[str, Any] = {
      "out_std": config.output_std * gain,
      "dtype": config.dtype,
      "layout": layout,
    }
    attends = common | {
      "bias": config.bias in ("attention", "all"),
      "qkv_bias": config.bias == "qkv",
      "qk_norm": config.qk_norm_over if config.qk_norm else "none",
      "norm_eps": config.norm_eps,
      "implementation": config.attention,
      "std": config.matrix_std,
      "value_std": config.matrix_std * gain,
    }
    sizes = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim
    attention: dict[str, Any] = {"scores": config.scores, "rngs": keys("attention")}
    self.attention = Attention(*sizes, **attends | attention)
    if config.short_swa.window:
      heads = config.short_swa_heads
      if config.short_swa.zero_init:
        attends["out_std"] = 0.0
      attends |= {"scores": config.short_swa_scores, "rngs": keys("short_swa")}
      self.short_swa = Attention(config.d_model, heads, heads, config.d_model // heads, **attends)
    views = normed_views(config, combinator)
    self.norms = nnx.Dict(
      {
        sublayer: nnx.Dict({view: _pre_norm(config, combinator, rngs) for view in used})
        for sublayer, used in views.items()
      }
    )
    self.norm_gates = _norm_gates(config, views, layout, keys("norm_gates"))
    after = {name: decoder_norm(config, rngs) for name in views} if config.post_norm else {}
    self.post_norms = nnx.Dict(after)

  def pre_norms(self, site: str) -> Norms:
    """Returns the norms to apply to the views of a site before `__call__`, by view.

    Where two sublayers share a view, it is the part that their norms share: an RMS norm without
    gain, or nothing.
    """
    return {view: _common(norms) for view, norms in self._norms_by_view(site).items()}

  def _norms_by_view(self, site: str) -> dict[str, list[Norm]]:
    """Returns the norms that the sublayers of a site have for each view."""
    norms: dict[str, list[Norm]] = {}
    for sublayer in _PARTS.get(site, (site,)):
      for view, of_view in self.norms[sublayer].items():
        norms.setdefault(view, []).append(of_view)
    return norms

  def values(self, site: str, views: combinators.Views) -> Float[Array, "B T K C"]:
    """Returns the values that the attention of a site has for these `views`."""
    return self.attention.values(_qkv(self.normed(site, "attention", views))[2])

  def normed(
    self, site: str, sublayer: str, views: combinators.Views
  ) -> dict[str, combinators.Stream]:
    """Returns the views that a sublayer uses, through what `pre_norms` left of its norms."""
    sharers = self._norms_by_view(site)
    normed = {
      view: views[view] if len(sharers[view]) == 1 else _own_part(own, views[view])
      for view, own in self.norms[sublayer].items()
    }
    if sublayer not in self.norm_gates:
      return normed
    return {view: self.norm_gates[sublayer][view](y) for view, y in normed.items()}

  def feed_forward(
    self, x: Float[Array, "B T D"], routed: Array | None, counted: Array
  ) -> tuple[Float[Array, "B T D"], Routing | None]:
    """Returns the output of the layer's MLP or mixture, and how the `counted` tokens chose.

    Args:
      x: the input.
      routed: whether the layer has a mixture, a scalar; None: all layers are alike.
      counted: which tokens are no padding [B, T].
    """
    if not hasattr(self, "moe"):
      return self.mlp(x), None
    if routed is None:
      return self.moe(x, counted)
    nothing = jax.tree.map(
      lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(self.moe, x, counted)[1]
    )
    return lax.cond(routed, lambda: self.moe(x, counted), lambda: (self.mlp(x), nothing))


class LayerRows(NamedTuple):
  """What differs from layer to layer: arrays with a leading axis L, or one layer's row of them.

  Attributes:
    layer: the parameters of a `Layer`.
    values: the weights with which it mixes other values into its attention's.
    window: the window of its attention, as index into the different ones; None: all the same.
    rope: its rotation, likewise.
    past: the keys and values of a `DecodeCache` by attention site; empty without one.
    routed: whether it has a mixture of experts; None: all layers are alike.
  """

  layer: PyTree
  values: ValueRows
  window: Array | None
  rope: Array | None
  past: dict[str, KeyValues]
  routed: Array | None = None


class LayerContext(NamedTuple):
  """What the branches of all layers read.

  Attributes:
    first_values: the values of the first layer [B, T, K, C], for the value residual.
    tokens: where the T tokens stand, alone in their rows or behind a cache's tokens.
    lengths: of the documents of the tokens [B, T], where they decide rotations.
    bank: keys and values of earlier layers, for the mix over depth.
    seen: what a probe reads.
  """

  first_values: Array | None
  tokens: TokensInRows | FirstTokens | TokensInCache
  lengths: Array | None = None
  bank: KeyValues | None = None
  seen: PyTree = None


@dataclasses.dataclass(frozen=True, eq=False)
class Branches:
  """The branches of all layers of a decoder.

  Attributes:
    graphdef: what makes a `Layer` of its parameters.
    values: what layers mix into the values of their attention; None: nothing.
    windows: the different windows of the attention.
    ropes: its different rotations; None: no rotation.
  """

  graphdef: nnx.GraphDef
  values: ValueMixing | None
  windows: tuple[int, ...]
  ropes: tuple[Rope | None, ...]

  def layer(self, row: LayerRows) -> Layer:
    """Returns the layer of a row."""
    return nnx.merge(self.graphdef, row.layer)

  def pre_norms(self, row: LayerRows, site: str) -> Norms:
    """Returns `Layer.pre_norms` of the layer of a row."""
    return self.layer(row).pre_norms(site)

  def __call__(
    self, row: LayerRows, site: str, views: combinators.Views, context: LayerContext
  ) -> tuple[combinators.Views, Float[Array, "B T D"], KeyValues | None, Routing | None]:
    """Runs the branch of a site.

    Args:
      row: the layer's.
      site: one of the config's `sites`.
      views: what the site reads through its `pre_norms`.
      context: what the branches of all layers read.

    Returns:
      The normalised views, the first sublayer's where sublayers differ; the output of the branch;
      of an attention, the keys and values of the T tokens; and of a mixture of experts, how its
      tokens chose.
    """
    layer, tokens = self.layer(row), context.tokens
    mixers: tuple[ValueMixer, ...] = ()
    if self.values is not None:
      mixers = self.values.mixers(row.values, context.first_values, context.bank)
    window = Window(self.windows, row.window)
    rotation = Rotation(self.ropes, row.rope, context.lengths)
    seen: dict[str, Array] = {}
    total, new, routing = None, None, None
    for sublayer in _PARTS.get(site, (site,)):
      normed = layer.normed(site, sublayer, views)
      if sublayer == "mlp":
        out, routing = layer.feed_forward(normed["x"], row.routed, tokens.segment_ids != 0)
      else:
        short = sublayer == "short_swa"
        attention = layer.short_swa if short else layer.attention
        options: dict[str, Any] = {
          "segment_ids": tokens.segment_ids,
          "positions": tokens.positions,
          "window": layer.short_window if short else window,
          "rotation": rotation,
          "mixers": () if short else mixers,
        }
        if isinstance(tokens, TokensInCache):
          options |= {"length": None if short else tokens.length, "keys": tokens.keys[site]}
          out, new = attention.decode(*_qkv(normed), row.past[site], **options)
        else:
          options["prompt"] = isinstance(tokens, FirstTokens)
          out, new = attention(*_qkv(normed), **options)
      if sublayer in layer.post_norms:
        out = layer.post_norms[sublayer](out)
      out = layer.layout.constrain(out, "batch", "tokens", "embed")
      seen, total = normed | seen, out if total is None else total + out
    assert total is not None  # every site has a sublayer
    return seen, total if layer.depth_ratio == 1 else total / layer.depth_ratio, new, routing


def _common(norms: list[Norm]) -> PreNorm | Norm:
  """Returns the part that several norms of one view share; a single norm is returned whole."""
  first, *others = norms
  if isinstance(first, nnx.RMSNorm):
    scale = _gain(first)
    return PreNorm(jnp.ones_like(scale) if others else scale, first.epsilon)
  return Identity() if others else first


def _own_part(own: Norm, x: Array) -> Array:
  """Applies to x [B, T, D] the part of a norm that `_common` leaves out, its gain."""
  return (x * _gain(own)).astype(x.dtype) if isinstance(own, nnx.RMSNorm) else own(x)


def _gain(own: nnx.RMSNorm) -> Array:
  assert own.scale is not None  # every norm here has one
  return own.scale[...]


def _qkv(normed: dict[str, Array]) -> tuple[Array, Array, Array]:
  """Returns the inputs of queries, keys and values: x where there is no view of their own."""
  q, k, v = (normed[name if name in normed else "x"] for name in "qkv")
  return q, k, v


def normed_views(
  config: DecoderConfig, combinator: combinators.Combinator
) -> dict[str, tuple[str, ...]]:
  """Returns the views that each sublayer of a layer uses, every one through a norm of its own."""
  return {
    sublayer: _used_views(combinator.view_names(site), sublayer)
    for site in config.sites
    for sublayer in _PARTS.get(site, (site,))
  }


def check_norm_gate(config: DecoderConfig, combinator: combinators.Combinator) -> None:
  """Raises a ValueError if norms are to have gates and the combinator takes their place."""
  if config.norm_gate.rank and not combinator.pre_norm:
    raise ValueError(
      f"config.model.norm_gate.rank={config.norm_gate.rank} gates the norms before branches, and "
      f"with config.model.residual.name={config.residual.name!r} there are none; set it to 0"
    )


def _norm_gates(
  config: DecoderConfig, views: Mapping[str, tuple[str, ...]], layout: Layout, rngs: nnx.Rngs
) -> nnx.Dict:
  """Returns what follows the norm of each view, by sublayer; empty without gates."""
  chosen, keys = config.norm_gate, Keys(rngs)
  made: dict[str, Any] = {"std": config.matrix_std, "dtype": config.dtype, "layout": layout}

  def gate(place: str) -> NormGate:
    return NormGate(chosen.form, config.d_model, chosen.rank, rngs=keys(place), **made)

  return nnx.Dict(
    {
      sublayer: nnx.Dict({view: gate(f"{sublayer}/{view}") for view in used})
      for sublayer, used in views.items()
      if chosen.rank
    }
  )


def _used_views(given: tuple[str, ...], sublayer: str) -> tuple[str, ...]:
  """Returns the names of the given views that a sublayer uses.

  An attention uses q, k and v, and x in place of any that is missing; an MLP uses x alone.
  """
  named = tuple(view for view in "qkv" if view in given) if sublayer != "mlp" else ()
  return named if len(named) == len("qkv") else (*named, "x")


def _pre_norm(config: DecoderConfig, combinator: combinators.Combinator, rngs: nnx.Rngs) -> Norm:
  has_one = config.pre_norm and combinator.pre_norm
  return decoder_norm(config, rngs) if has_one else Identity()


def decoder_norm(config: DecoderConfig, rngs: nnx.Rngs) -> Norm:
  """Returns a norm over D of the config's kind."""
  return make_norm(
    config.norm,
    config.d_model,
    eps=config.norm_eps,
    bias=config.bias == "all" or config.norm_bias,
    dtype=config.dtype,
    rngs=rngs,
  )
