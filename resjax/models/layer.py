"""The branches of one layer of a decoder."""

from flax import nnx

from resjax import combinators
from resjax.models.config import DecoderConfig
from resjax.models.decode_cache import TokensInCache
from resjax.nn.attention import Attention, ValueResidual
from resjax.nn.kv_cache import KeyValues
from resjax.nn.mlp import MLP
from resjax.nn.norm import Identity, norm
from resjax.sharding import Layout
from resjax.typing import Array


class Layer(nnx.Module):
  """Sublayers, and a pre-norm for every view that a site uses.

  Sites are `attention`, `mlp`, and, if the config has a window for it, `short_swa`: causal
  attention over the last few tokens (arXiv 2603.16039), with as many key as query heads.

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
    gain = combinator.branch_init_gain
    common = {
      "bias": config.bias,
      "out_std": config.output_std * gain,
      "dtype": config.dtype,
      "layout": layout,
      "rngs": rngs,
    }
    attends = common | {
      "rope_theta": config.rope_theta if config.positions == "rope" else None,
      "qk_norm": config.qk_norm,
      "norm_eps": config.norm_eps,
      "implementation": config.attention,
      "std": config.init_std,
      "value_std": config.init_std * gain,
    }
    sizes = config.num_heads, config.num_kv_heads, config.head_dim
    self.attention = Attention(config.d_model, *sizes, **attends)
    self.mlp = MLP(config.mlp, config.d_model, config.mlp_dim, std=config.init_std * gain, **common)
    # After the others: they start the same with and without it. Norms start as constants.
    self.short_swa = _short_swa(config, attends) if config.short_swa.window else None
    self.norms = nnx.Dict(
      {
        site: nnx.Dict(
          {view: _pre_norm(config, combinator, rngs) for view in _used_views(combinator, site)}
        )
        for site in config.sites
      }
    )

  def __call__(
    self,
    site: str,
    views: combinators.Views,
    context: dict[str, Array],
    residual: ValueResidual | None = None,
  ) -> tuple[combinators.Views, Array]:
    """Runs the branch of a site.

    Args:
      site: one of the config's `sites`.
      views: what the combinator lets the site read, [B, T, D] each.
      context: `segment_ids` and `positions`, [B, T].
      residual: for the values of `attention`.

    Returns:
      The normalised views, and the output of the sublayer [B, T, D].
    """
    normed = self._normed(site, views)
    if site == "attention":
      out = self.attention(*_qkv(normed), residual=residual, **context)
    elif site == "short_swa":
      out = self.short_swa(*_qkv(normed), **context)
    else:
      out = self.mlp(normed["x"])
    return normed, self.layout.constrain(out, "batch", "tokens", "embed")

  def decode(
    self,
    site: str,
    views: combinators.Views,
    past: dict[str, KeyValues],
    context: TokensInCache,
    residual: ValueResidual | None = None,
  ) -> tuple[combinators.Views, Array, KeyValues | None]:
    """Runs the branch of a site for tokens that follow those in a cache.

    Args:
      site: one of the config's `sites`.
      views: what the combinator lets the site read, [B, T, D] each.
      past: keys and values of earlier tokens, by site.
      context: where the tokens stand.
      residual: for the values of `attention`.

    Returns:
      The normalised views, the output of the sublayer [B, T, D], and the new keys and values.
    """
    if site == "mlp":
      return *self(site, views, {}), None
    normed = self._normed(site, views)
    attention = self.attention if site == "attention" else self.short_swa
    out, new = attention.decode(
      *_qkv(normed),
      past[site],
      length=context.length,
      mask=context.masks[site],
      positions=context.positions,
      residual=residual if site == "attention" else None,
    )
    return normed, self.layout.constrain(out, "batch", "tokens", "embed"), new

  def values(self, views: combinators.Views) -> Array:
    """Returns the values [B, T, K, C] that `attention` has for these views."""
    return self.attention.values(_qkv(self._normed("attention", views))[2])

  def _normed(self, site, views):
    return {name: norm(views[name]) for name, norm in self.norms[site].items()}


def _short_swa(config: DecoderConfig, options: dict) -> Attention:
  heads = config.short_swa_heads
  options = options | {"window": config.short_swa.window}
  if config.short_swa.zero_init:
    options["out_std"] = 0.0
  return Attention(config.d_model, heads, heads, config.d_model // heads, **options)


def _qkv(normed: combinators.Views) -> list[Array]:
  x = normed.get("x")
  return [normed.get(name, x) for name in "qkv"]


def _used_views(combinator: combinators.Combinator, site: str) -> tuple[str, ...]:
  """Attention takes q, k and v where it is given them; whatever else a site has is not used."""
  given = combinator.view_names(site)
  named = tuple(view for view in "qkv" if view in given) if site != "mlp" else ()
  return named if len(named) == len("qkv") else (*named, "x")


def _pre_norm(config, combinator: combinators.Combinator, rngs: nnx.Rngs):
  return decoder_norm(config, rngs) if combinator.pre_norm else Identity()


def decoder_norm(config: DecoderConfig, rngs: nnx.Rngs) -> nnx.Module:
  """Returns a norm over D of the config's kind."""
  return norm(
    config.norm,
    config.d_model,
    eps=config.norm_eps,
    bias=config.bias,
    dtype=config.dtype,
    rngs=rngs,
  )
