"""A decoder whose residual path is a combinator."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from resjax import combinators
from resjax.kernels.self_attention import Window
from resjax.models import depth
from resjax.models.config import DecoderConfig
from resjax.models.decode_cache import DecodeCache
from resjax.models.layer import Layer, decoder_norm
from resjax.nn.attention import ValueResidual
from resjax.nn.embed import Embedding
from resjax.nn.kv_cache import KeyValues
from resjax.sharding import Layout
from resjax.typing import Array, PyTree


class _Rows(NamedTuple):
  """What differs from layer to layer; leading axis L, or none for one layer."""

  layer: PyTree  # parameters of a `Layer`
  value_weights: Array | None  # of the value residual, [2]
  window: Array | None  # of the attention, its index among the different ones
  past: dict[str, KeyValues] | None = None  # of a `DecodeCache`


class Probed(NamedTuple):
  """What a decoder with a probe gives.

  Attributes:
    embedded: what the layers start from [B, T, D].
    output: what they end with [B, T, D], before the final norm.
    weights: `Combinator.depth_weights` of the last read, or None.
    layers: what the probe returned, with leading axis L.
  """

  embedded: Array
  output: Array
  weights: Array | None
  layers: PyTree


class Decoder(nnx.Module):
  """Embedding, L layers through a combinator, final norm, output embedding.

  With `value_residual`, attention of layer l has the values λ₁ v_l + λ₂ v_0, where v_0 are those of
  the first layer: weights [L - 1, 2] in all, 0.5 at init or fixed at it.

  Args:
    config: sizes and choices.
    layout: mesh and sharding rules of the activations; default: none.
    rngs: source of the initial values.

  Source: GPT-2 and Llama styles; pre-norm, arXiv 2002.04745. Value residual: arXiv 2410.17897.
  """

  def __init__(self, config: DecoderConfig, *, layout: Layout | None = None, rngs: nnx.Rngs):
    layout = Layout() if layout is None else layout
    self.config, self.layout = config, layout
    learned = config.positions == "learned"
    self.embed = _embedding(config, config.max_positions if learned else 0, layout, rngs)
    keys = jax.random.split(rngs.params(), config.num_layers)
    self.combinator = combinators.build(
      config.residual.name,
      num_layers=config.num_layers,
      d_model=config.d_model,
      sites=config.sites,
      layout=layout,
      rngs=rngs,
      **config.residual.options,
    )
    self.layers = jax.vmap(
      lambda key: Layer(config, self.combinator, layout, nnx.Rngs(params=key))
    )(keys)
    later = config.num_layers - 1
    learns = config.value_residual == "learned" and later > 0
    self.value_weights = nnx.Param(jnp.full((later, 2), 0.5)) if learns else None
    self.final_norm = decoder_norm(config, rngs)
    self.output = None if config.tied_embeddings else _embedding(config, 0, layout, rngs)

  def __call__(
    self, tokens: Array, segment_ids: Array | None = None, positions: Array | None = None
  ) -> Array:
    """Returns the final normalised hidden states [B, T, D].

    Args:
      tokens: [B, T], integers below V.
      segment_ids: [B, T]; attention stays within a segment. Default: one segment per row.
      positions: [B, T]; default 0..T-1.
    """
    rows, x, branch, options = self._stack(tokens, segment_ids, positions)
    y = depth.run(
      self.combinator,
      rows,
      x,
      lambda *arguments: branch(*arguments)[:2],
      remat=self.config.remat,
      **options,
    )
    return self.final_norm(y)

  def probe(
    self,
    probe: depth.Probe,
    seen: PyTree,
    tokens: Array,
    segment_ids: Array | None = None,
    positions: Array | None = None,
  ) -> Probed:
    """Runs the layers with a probe that looks at each of them; no gradients.

    Args:
      probe: see `depth.run_probed`.
      seen: arrays that it may read.
      tokens: as in a call.
      segment_ids: as in a call.
      positions: as in a call.
    """
    rows, x, branch, options = self._stack(tokens, segment_ids, positions)
    y, weights, probed = depth.run_probed(
      self.combinator, rows, x, branch, probe, seen=seen, **options
    )
    return Probed(x, y, weights, probed)

  def _stack(self, tokens: Array, segment_ids: Array | None, positions: Array | None) -> tuple:
    """Returns what `depth` runs: stacked layers, embeddings, branch and options."""
    if segment_ids is None:
      segment_ids = jnp.ones_like(tokens)
    if positions is None:
      self._check_length(tokens.shape[1])
      positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    context = {"segment_ids": segment_ids, "positions": positions}
    graphdef, layers = nnx.split(self.layers)

    def branch(row, site, views, context):
      layer = nnx.merge(graphdef, row.layer)
      extras = _value_residual(row, context), self._window(row)
      return *layer(site, views, context["tokens"], *extras), None

    rows = _Rows(layers, self._value_weights(), self._window_indices())
    x = self._embedded(tokens, positions)
    token_context = combinators.TokenContext(segment_ids)
    context = self._context(graphdef, rows, x, branch, context, token_context)
    unroll = self.config.depth == "loop"
    return rows, x, branch, {"context": context, "tokens": token_context, "unroll": unroll}

  def empty_cache(self, batch_size: int, size: int) -> DecodeCache:
    """Returns the cache before the first of at most `size` tokens, see `DecodeCache.empty`."""
    return DecodeCache.empty(self.config, self.combinator, batch_size, size)

  def decode(
    self, tokens: Array, cache: DecodeCache, segment_ids: Array | None = None
  ) -> tuple[Array, DecodeCache]:
    """Runs tokens that follow those of a cache: a whole prompt, or the next one.

    Args:
      tokens: [B, T]; as many as fit into the cache.
      cache: of earlier tokens; not changed.
      segment_ids: [B, T]; 1, or 0 for padding. Default: no padding.

    Returns:
      The final normalised hidden states [B, T, D], and the cache with the new tokens.
    """
    if segment_ids is None:
      segment_ids = jnp.ones_like(tokens)
    place = cache.place(segment_ids)
    graphdef, layers = nnx.split(self.layers)

    def branch(row, site, views, context):
      layer = nnx.merge(graphdef, row.layer)
      extras = _value_residual(row, context), self._window(row)
      return layer.decode(site, views, row.past, context["tokens"], *extras)

    rows = _Rows(layers, self._value_weights(), self._window_indices(), cache.past)
    x = self._embedded(tokens, place.positions)
    token_context = combinators.TokenContext(segment_ids, cache.combinator)
    context = self._context(graphdef, rows, x, branch, place, token_context)
    y, new, combinator_cache = depth.run_keeping(
      self.combinator,
      rows,
      x,
      branch,
      context=context,
      tokens=token_context,
      unroll=self.config.depth == "loop",
    )
    return self.final_norm(y), cache.advance(segment_ids, new, combinator_cache)

  def _embedded(self, tokens: Array, positions: Array) -> Array:
    return self.layout.constrain(self.embed(tokens, positions), "batch", "tokens", "embed")

  def _value_weights(self) -> Array | None:
    """Weights of own and first values in every layer [L, 2]; the first layer has its own."""
    if self.config.value_residual == "none":
      return None
    later = jnp.full((self.config.num_layers - 1, 2), 0.5)
    if self.value_weights is not None:
      later = self.value_weights[...]
    return jnp.concatenate([jnp.array([[1.0, 0.0]]), later])

  def _window(self, row: _Rows) -> Window:
    return Window(tuple(dict.fromkeys(self.config.layer_windows)), row.window)

  def _window_indices(self) -> Array | None:
    """Which of the different windows each layer has [L]; None: there is one."""
    windows = self.config.layer_windows
    sizes = list(dict.fromkeys(windows))
    return jnp.array([sizes.index(size) for size in windows]) if len(sizes) > 1 else None

  def _check_length(self, length: int) -> None:
    longest = self.config.max_positions
    if self.config.positions == "learned" and length > longest:
      raise ValueError(f"{length} tokens are more than the {longest} learned positions")

  def _context(self, graphdef, rows: _Rows, x, branch, tokens, token_context) -> dict:
    """Returns what all branches read: where the tokens stand, and the values of the first layer."""
    context = {"tokens": tokens, "first_values": None}
    if rows.value_weights is None:
      return context

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def first_values(rows, x, context, token_context):
      views = depth.first_views(
        self.combinator,
        rows,
        x,
        branch,
        self.config.attention_site,
        context=context,
        tokens=token_context,
      )
      first = nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf[0], rows.layer))
      return first.values(views)

    return context | {"first_values": first_values(rows, x, context, token_context)}

  @property
  def head(self) -> Array:
    """The output embedding [V, D]; the token embedding itself if they are tied."""
    return (self.embed if self.output is None else self.output).embedding[...]

  def logits(self, hidden: Array, head: Array | None = None) -> Array:
    """Maps hidden states [..., D] to float32 logits [..., V], capped where the config says so.

    Args:
      hidden: after the final norm.
      head: [V, D] where it is at hand, else that of the decoder.
    """
    head = (self.head if head is None else head).astype(hidden.dtype)
    logits = jnp.einsum("...d,vd->...v", hidden, head, preferred_element_type=jnp.float32)
    cap = self.config.logit_softcap
    return cap * jnp.tanh(logits / cap) if cap else logits


def _embedding(
  config: DecoderConfig, max_positions: int, layout: Layout, rngs: nnx.Rngs
) -> Embedding:
  return Embedding(
    config.vocab_size,
    config.d_model,
    max_positions=max_positions,
    scaled=config.embed_scale,
    std=config.init_std,
    dtype=config.dtype,
    layout=layout,
    rngs=rngs,
  )


def _value_residual(row: _Rows, context: dict) -> ValueResidual | None:
  if row.value_weights is None:
    return None
  return ValueResidual(row.value_weights, context["first_values"])
