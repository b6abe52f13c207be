"""A decoder whose residual path is a combinator."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from resjax import combinators
from resjax.base import Array, PyTree, wide_dtype
from resjax.base.sharding import Layout
from resjax.combinators import OUTPUT
from resjax.models import depth
from resjax.models.config import DecoderConfig
from resjax.models.decode_cache import DecodeCache, FirstTokens, TokensInCache, TokensInRows
from resjax.models.decoding import Decoding, Hidden
from resjax.models.feed_forward import for_all_layers, stacked_layers
from resjax.models.layer import (
  Branches,
  LayerContext,
  LayerRows,
  check_norm_gate,
  decoder_norm,
)
from resjax.models.routing import collect_routing, routing_relay, summed
from resjax.models.values import ValueMixing, ValueParameters, ValueRows
from resjax.nn import Embedding, Identity, Keys, KeyValues, Routing

T = TypeVar("T")


class Probed(NamedTuple):
  """The results of running a decoder with a probe.

  Attributes:
    embedded: the embeddings that the layers start from; where the combinator normalises its output
      (`Combinator.final_norm` is False), its output for them without layers.
    output: the output of the layers, before the final norm.
    weights: `Combinator.depth_weights` of the last read, or None.
    layers: the results of the probe, with a leading axis L.
  """

  embedded: Float[Array, "B T D"]
  output: Float[Array, "B T D"]
  weights: combinators.SourceWeights | None
  layers: PyTree


class Decoder(nnx.Module):
  """Embedding, L layers through a combinator, final norm, output embedding.

  A combinator whose views or whose output are normalised already, see `Combinator.pre_norm` and
  `Combinator.final_norm`, takes the place of these norms, and the decoder has none of them.

  With `value_residual`, the attention of layer l has the values λ₁ v_l + λ₂ v_0, where layer
  0 has the values v_0. The weights λ, [L - 1, 2] in all, are 0.5 at init, or fixed at 0.5; or
  λ₁ is 1 and λ₂ depends on the token (`GatedValues`). With `value_mixing` layers then mix them with
  the values of some earlier layers (`DepthValues`).

  Args:
    config: the sizes and choices of the decoder.
    combinator: the residual path, where it is made already; `config.residual` is then not read. It
      must have the config's num_layers, d_model and sites (`DecoderConfig.sites`), and a layout
      over the devices of this one: combinators.Gate(num_layers=config.num_layers,
      d_model=config.d_model, sites=config.sites, layout=layout). Commands and records know a system
      by name alone, see `combinators.register`. Default: the one that `config.residual` names.
    layout: the mesh and sharding rules of the activations; default: no mesh.
    rngs: the source of the initial values.

  Raises:
    ValueError: the combinator does not agree with the config.

  Source: GPT-2 and Llama styles; pre-norm, arXiv 2002.04745. Value residual: arXiv 2410.17897.
  """

  def __init__(
    self,
    config: DecoderConfig,
    combinator: combinators.Combinator | None = None,
    *,
    layout: Layout | None = None,
    rngs: nnx.Rngs,
  ):
    layout = Layout() if layout is None else layout
    self.config, self.layout = config, layout
    learned = config.positions == "learned"
    keys, max_positions = Keys(rngs), config.max_positions if learned else 0
    self.embed = _embedding(config, max_positions, layout, keys("embed"))
    if combinator is None:
      combinator = combinators.build(
        config.residual.name,
        num_layers=config.num_layers,
        d_model=config.d_model,
        sites=config.sites,
        layout=layout,
        rngs=keys("combinator"),
        scaled_init=True,
        **config.residual.options,
      )
    else:
      _check_agrees(config, combinator, layout)
    self.combinator, combinator.scaled_init = combinator, True  # `Layer` multiplies by the gain
    check_norm_gate(config, self.combinator)
    self.layers = stacked_layers(config, self.combinator, layout, keys("layers"))
    values = ValueParameters()
    if config.mixes_values:
      values = ValueParameters.of(config, layout, keys("values"))
    self.value_weights, self.value_gate, self.value_share = values
    normalised = not self.combinator.final_norm
    self.final_norm = Identity() if normalised else decoder_norm(config, keys("final_norm"))
    tied = config.tied_embeddings
    self.output = None if tied else _embedding(config, 0, layout, keys("output"))

  def __call__(
    self,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"] | None = None,
    positions: Int[Array, "B T"] | None = None,
  ) -> Float[Array, "B T D"]:
    """Returns the final normalised hidden states.

    Args:
      tokens: the token numbers, below V.
      segment_ids: the segment of each token; attention stays within a segment. Default: one segment
        per row.
      positions: the position of each token in its segment; default: 0..T-1.
    """
    return self.routed(tokens, segment_ids, positions)[0]

  def routed(
    self,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"] | None = None,
    positions: Int[Array, "B T"] | None = None,
  ) -> tuple[Float[Array, "B T D"], Routing | None]:
    """Returns what `__call__` does, and how the tokens chose among experts, if there are any.

    Counts and entropies have an axis of the layers with experts before the others, `balance` and
    `z` are means over these layers.
    """
    place = self._place(tokens, segment_ids, positions)
    stack = self._stack(tokens, place, combinators.TokenContext(place.segment_ids))
    relays, collect = [stack.pop("relay")], None
    if self.config.routed_layers:
      relays, collect = [*relays, routing_relay(self.config)], collect_routing
    relay = depth.joined([each for each in relays if each is not None])
    remat = self.config.remat
    last, found = depth.run_layers(
      self.combinator, collect=collect, relay=relay, remat=remat, **stack
    )
    with jax.named_scope("depth_mixing"):
      out = self.combinator.final(last.state)
    chosen = None if collect is None else summed(self.config, last.handed[-1], found)
    return self.final_norm(out), chosen

  def probe(
    self, probe: depth.Collect, seen: PyTree, tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"] | None = None, positions: Int[Array, "B T"] | None = None,
  ) -> Probed:  # fmt: skip
    """Runs the layers with a probe that looks at each of them; without gradients.

    Takes the arguments of `__call__`, and:

    Args:
      probe: a pure function that closes over no array: probe(visits, seen) gets the visits to the
        sites of a layer, in their order, and returns a pytree of arrays.
      seen: arrays that the probe may read.
    """

    def collect(visits: Sequence[depth.SiteVisit], context: LayerContext) -> PyTree:
      return probe(visits, context.seen)

    place = self._place(tokens, segment_ids, positions)
    stack = self._stack(tokens, place, combinators.TokenContext(place.segment_ids))
    stack["context"] = stack["context"]._replace(seen=seen)
    last, probed = depth.run_layers(self.combinator, **stack, collect=collect)
    state = last.state
    weights = self.combinator.depth_weights(state, self.config.num_layers, OUTPUT)
    embedded = stack["x"]
    if not self.combinator.final_norm:
      embedded = self.combinator.final(self.combinator.init(embedded, stack["tokens"]))
    return Probed(embedded, self.combinator.final(state), weights, probed)

  def _place(
    self, tokens: Array, segment_ids: Array | None, positions: Array | None
  ) -> TokensInRows:
    """Returns where the tokens of whole rows stand, by default one segment per row."""
    if segment_ids is None:
      segment_ids = jnp.ones_like(tokens)
    if positions is None:
      self._check_length(tokens.shape[1])
      positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return TokensInRows(positions, segment_ids)

  def _stack(
    self,
    tokens: Array,
    place: TokensInRows | FirstTokens | TokensInCache,
    token_context: combinators.TokenContext,
    past: dict[str, KeyValues] | None = None,
  ) -> dict[str, Any]:
    """Returns the arguments of `depth.run_layers` for these tokens [B, T]."""
    graphdef, layers = nnx.split(self.layers)
    layers, routed = for_all_layers(self.config, layers)
    windows, window = _different(self.config.layer_windows)
    ropes, rope = _different(self.config.layer_ropes)
    values = self._values()
    branches = Branches(graphdef, values, windows, ropes)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def first_values(
      rows: LayerRows, x: Array, context: LayerContext, tokens: combinators.TokenContext
    ) -> Array:
      views = depth.first_views(
        self.combinator,
        rows,
        x,
        branches,
        self.config.attention_site,
        pre_norms=branches.pre_norms,
        context=context,
        tokens=tokens,
      )
      first = branches.layer(jax.tree.map(lambda leaf: leaf[0], rows))
      return first.values(self.config.attention_site, views)

    mixed = ValueRows() if values is None else values.rows()
    rows = LayerRows(layers, mixed, window, rope, past or {}, routed)
    x = self.embed(tokens, place.positions)
    x = self.layout.constrain(x, "batch", "tokens", "embed")
    context = LayerContext(None, place)
    if self.config.short_lengths:
      lengths = _document_lengths(place.positions, place.segment_ids)
      context = context._replace(lengths=lengths)
    if values is not None and values.needs_first:
      context = context._replace(first_values=first_values(rows, x, context, token_context))
    return {
      "layers": rows,
      "x": x,
      "branch": branches,
      "pre_norms": branches.pre_norms,
      "relay": None if values is None else _relay(values, x),
      "context": context,
      "tokens": token_context,
      "unroll": self.config.depth == "loop",
    }

  def empty_cache(self, batch_size: int, size: int) -> DecodeCache:
    """Returns the cache before the first of at most `size` tokens, see `DecodeCache.empty`."""
    return DecodeCache.empty(self.config, self.combinator, batch_size, size)

  def decode(
    self,
    tokens: Int[Array, "B T"],
    cache: DecodeCache,
    segment_ids: Int[Array, "B T"] | None = None,
  ) -> Hidden:
    """Runs tokens that follow a cache: a whole prompt, or the next token.

    Rows do not depend on each other's lengths, nor on where padding stands. A row that gets long
    for `longrope` by these tokens is run again from its first token.

    Args:
      tokens: the token numbers, as many as fit into the cache.
      cache: the cache after earlier tokens; it is not changed.
      segment_ids: 1 for a token, 0 for padding, in any places. Default: no padding.

    Returns:
      The final normalised hidden states, and the cache with the new tokens. The states of padding
      have no meaning.

    Raises:
      ValueError: it is known that they do not fit.
    """
    steps = Decoding(self._decode, self.empty_cache, self.config.short_lengths)
    return steps.decode(tokens, cache, segment_ids)

  def _decode(self, tokens: Array, cache: DecodeCache, segment_ids: Array) -> Hidden:
    """Runs new tokens only, as `decode` does if no earlier token has to be computed again."""

    def keep(visits: Sequence[depth.SiteVisit], _: LayerContext) -> dict[str, KeyValues | None]:
      return {visit.site: visit.kept[0] for visit in visits}

    token_context = combinators.TokenContext(segment_ids, cache.combinator)
    stack = self._stack(tokens, cache.place(segment_ids), token_context, cache.past)
    last, new = depth.run_layers(self.combinator, **stack, collect=keep)
    hidden = self.final_norm(self.combinator.final(last.state))
    new_cache = cache.advance(tokens, segment_ids, new, self.combinator.next_cache(last.state))
    return hidden, new_cache

  def _values(self) -> ValueMixing | None:
    """Returns how attentions mix other values into their own, with its parameters; None: not."""
    if not self.config.mixes_values:
      return None
    parameters = ValueParameters(self.value_weights, self.value_gate, self.value_share)
    return ValueMixing(self.config, self.layout, parameters)

  def _check_length(self, length: int) -> None:
    longest = self.config.max_positions
    if self.config.positions == "learned" and length > longest:
      raise ValueError(f"{length} tokens are more than the {longest} learned positions")

  @property
  def head(self) -> Float[Array, "V D"]:
    """What maps hidden states to logits: the output embedding, which may be the tokens' own.

    With `config.mup.base_width` it is divided by the ratio of the widths.
    """
    embedding = (self.embed if self.output is None else self.output).embedding[...]
    ratio = self.config.width_ratio
    return embedding if ratio == 1 else embedding / ratio

  def logits(
    self, hidden: Float[Array, "*tokens D"], head: Float[Array, "V D"] | None = None
  ) -> Float[Array, "*tokens V"]:
    """Maps hidden states to logits, float32 or wider, capped where the config says so.

    Args:
      hidden: hidden states after the final norm.
      head: an output embedding; default: the decoder's.
    """
    head = (self.head if head is None else head).astype(hidden.dtype)
    wide = wide_dtype(hidden)
    logits = jnp.einsum("...d,vd->...v", hidden, head, preferred_element_type=wide)
    cap = self.config.logit_softcap
    return cap * jnp.tanh(logits / cap) if cap else logits


def _document_lengths(positions: Array, segment_ids: Array) -> Array:
  """Returns the largest position, plus 1, in the document of each token [B, T]."""
  same = segment_ids[:, :, None] == segment_ids[:, None, :]
  return 1 + jnp.max(jnp.where(same, positions[:, None, :], 0), axis=-1)


def _check_agrees(
  config: DecoderConfig, combinator: combinators.Combinator, layout: Layout
) -> None:
  """Raises a ValueError where a combinator that is given is not for a decoder of this config."""
  for name in ("num_layers", "d_model", "sites"):
    own, wanted = getattr(combinator, name), getattr(config, name)
    if own != wanted:
      raise ValueError(f"the combinator has {name}={own!r}, the decoder {wanted!r}; make it anew")
  if combinator.layout.mesh != layout.mesh:
    raise ValueError(
      f"the combinator is for the mesh {dict(combinator.layout.mesh.shape)}, the decoder for "
      f"{dict(layout.mesh.shape)}; give both the same layout"
    )
  if config.mup.base_layers and type(combinator) is not combinators.Standard:
    raise ValueError(
      f"config.model.mup.base_layers={config.mup.base_layers} scales the branches of 'standard', "
      f"and the combinator is a {type(combinator).__name__}; set it to 0"
    )


def _different(of_layers: Sequence[T]) -> tuple[tuple[T, ...], Array | None]:
  """Returns the distinct values, and for each layer the index of its own [L]; None if all agree."""
  values = tuple(dict.fromkeys(of_layers))
  indices = [values.index(value) for value in of_layers]
  return values, jnp.array(indices) if len(values) > 1 else None


def _relay(values: ValueMixing, x: Array) -> depth.Relay | None:
  """Returns what hands a bank of keys and values from layer to layer, for tokens [B, T, D]."""
  bank = values.empty_bank(*x.shape[:2])
  if bank is None:
    return None

  def give(context: LayerContext, bank: KeyValues) -> LayerContext:
    return context._replace(bank=bank)

  def take(row: LayerRows, visits: Sequence[depth.SiteVisit], bank: KeyValues) -> KeyValues:
    return values.stored(row.values, visits, bank)

  return depth.Relay(bank, give, take)


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
