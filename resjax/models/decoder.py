"""A pre-norm decoder whose residual path is a combinator."""

import jax
import jax.numpy as jnp
from flax import nnx

from resjax import combinators
from resjax.models import depth
from resjax.models.config import SITES, DecoderConfig
from resjax.nn.attention import Attention
from resjax.nn.embed import Embedding
from resjax.nn.mlp import MLP
from resjax.nn.norm import Identity, norm
from resjax.sharding import Layout
from resjax.typing import Array


class Layer(nnx.Module):
  """The branches of one layer: sublayers, and a pre-norm for every view that a site uses.

  Args:
    config: sizes and choices.
    combinator: tells which views a site is given, and whether branches have pre-norms.
    layout: of the activations.
    rngs: source of the initial values.
  """

  def __init__(
    self,
    config: DecoderConfig,
    combinator: combinators.Combinator,
    layout: Layout,
    rngs: nnx.Rngs,
  ):
    self.layout = layout
    self.norms = nnx.Dict(
      {
        site: nnx.Dict(
          {view: _pre_norm(config, combinator, rngs) for view in _used_views(combinator, site)}
        )
        for site in SITES
      }
    )
    gain = combinator.branch_init_gain
    common = {
      "bias": config.bias,
      "std": config.init_std,
      "out_std": config.output_std * gain,
      "dtype": config.dtype,
      "layout": layout,
      "rngs": rngs,
    }
    self.attention = Attention(
      config.d_model,
      config.num_heads,
      config.num_kv_heads,
      config.head_dim,
      rope_theta=config.rope_theta if config.positions == "rope" else None,
      qk_norm=config.qk_norm,
      norm_eps=config.norm_eps,
      implementation=config.attention,
      value_std=config.init_std * gain,
      **common,
    )
    self.mlp = MLP(
      config.mlp, config.d_model, config.mlp_dim, **common | {"std": config.init_std * gain}
    )

  def __call__(self, site: str, views: combinators.Views, context: dict[str, Array]):
    """Runs the branch of a site.

    Args:
      site: `attention` or `mlp`.
      views: what the combinator lets the site read, [B, T, D] each.
      context: `segment_ids` and `positions`, [B, T].

    Returns:
      The normalised views, and the output of the sublayer [B, T, D].
    """
    normed = {name: norm(views[name]) for name, norm in self.norms[site].items()}
    if site == "attention":
      x = normed.get("x")
      out = self.attention(*(normed.get(name, x) for name in "qkv"), **context)
    else:
      out = self.mlp(normed["x"])
    return normed, self.layout.constrain(out, "batch", "tokens", "embed")


class Decoder(nnx.Module):
  """Embedding, L layers through a combinator, final norm, output embedding.

  Args:
    config: sizes and choices.
    layout: mesh and sharding rules of the activations; default: none.
    rngs: source of the initial values.

  Source: GPT-2 and Llama styles; pre-norm, arXiv 2002.04745.
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
      sites=SITES,
      rngs=rngs,
      **config.residual.options,
    )
    self.layers = jax.vmap(
      lambda key: Layer(config, self.combinator, layout, nnx.Rngs(params=key))
    )(keys)
    self.final_norm = _norm(config, rngs)
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
    if segment_ids is None:
      segment_ids = jnp.ones_like(tokens)
    if positions is None:
      positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    graphdef, layers = nnx.split(self.layers)

    def branch(layer, site, views, context):
      return nnx.merge(graphdef, layer)(site, views, context)

    x = self.layout.constrain(self.embed(tokens, positions), "batch", "tokens", "embed")
    y = depth.run(
      self.combinator,
      layers,
      x,
      branch,
      context={"segment_ids": segment_ids, "positions": positions},
      tokens=combinators.TokenContext(segment_ids),
      remat=self.config.remat,
      unroll=self.config.depth == "loop",
    )
    return self.final_norm(y)

  @property
  def head(self) -> Array:
    """The output embedding [V, D]; the token embedding itself if they are tied."""
    return (self.embed if self.output is None else self.output).embedding[...]

  def logits(self, hidden: Array) -> Array:
    """Maps hidden states [..., D] to float32 logits [..., V]."""
    head = self.head.astype(hidden.dtype)
    return jnp.einsum("...d,vd->...v", hidden, head, preferred_element_type=jnp.float32)


def _embedding(
  config: DecoderConfig, max_positions: int, layout: Layout, rngs: nnx.Rngs
) -> Embedding:
  return Embedding(
    config.vocab_size,
    config.d_model,
    max_positions=max_positions,
    std=config.init_std,
    dtype=config.dtype,
    layout=layout,
    rngs=rngs,
  )


def _used_views(combinator: combinators.Combinator, site: str) -> tuple[str, ...]:
  """Attention takes q, k and v where it is given them; whatever else a site has is not used."""
  given = combinator.view_names(site)
  named = tuple(view for view in "qkv" if view in given) if site == "attention" else ()
  return named if len(named) == len("qkv") else (*named, "x")


def _pre_norm(config, combinator: combinators.Combinator, rngs: nnx.Rngs):
  return _norm(config, rngs) if combinator.pre_norm else Identity()


def _norm(config: DecoderConfig, rngs: nnx.Rngs) -> nnx.Module:
  return norm(
    config.norm,
    config.d_model,
    eps=config.norm_eps,
    bias=config.bias,
    dtype=config.dtype,
    rngs=rngs,
  )
