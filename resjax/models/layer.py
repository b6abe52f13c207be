"""The branches of one layer of a decoder."""

from collections.abc import Callable

from flax import nnx

from resjax import combinators
from resjax.kernels.self_attention import ALL_EARLIER, Window
from resjax.models.config import DecoderConfig
from resjax.models.decode_cache import TokensInCache
from resjax.nn.attention import Attention, ValueResidual
from resjax.nn.kv_cache import KeyValues
from resjax.nn.mlp import MLP
from resjax.nn.norm import Identity, norm
from resjax.sharding import Layout
from resjax.typing import Array

_PARTS = {"parallel": ("attention", "mlp")}  # sublayers of a site that has several


class Layer(nnx.Module):
  """Sublayers, and a pre-norm for every view that one uses, if asked for also a norm of its output.

  Sites are `attention` and `mlp`, or `parallel`, whose branch is the sum of both (GPT-J, GPT-NeoX,
  arXiv 2204.06745), each with norms of its own; and, if the config has a window for it,
  `short_swa`: causal attention over the last few tokens (arXiv 2603.16039), with as many key as
  query heads.

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
    self.layout, self.short_window = layout, Window((config.short_swa.window,))
    gain = combinator.branch_init_gain
    common = {
      "out_std": config.output_std * gain,
      "dtype": config.dtype,
      "layout": layout,
      "rngs": rngs,
    }
    attends = common | {
      "bias": config.bias in ("attention", "all"),
      "qkv_bias": config.bias == "qkv",
      "rotation": config.rotation,
      "qk_norm": config.qk_norm,
      "norm_eps": config.norm_eps,
      "implementation": config.attention,
      "std": config.init_std,
      "value_std": config.init_std * gain,
    }
    sizes = config.num_heads, config.num_kv_heads, config.head_dim
    self.attention = Attention(config.d_model, *sizes, scores=config.scores, **attends)
    inner = {"bias": config.bias == "all", "std": config.init_std * gain}
    self.mlp = MLP(config.mlp, config.d_model, config.mlp_dim, **inner, **common)
    # After the others: they start the same with and without it. Norms start as constants.
    self.short_swa = _short_swa(config, attends) if config.short_swa.window else None
    self.norms = nnx.Dict(
      {
        sublayer: nnx.Dict(
          {view: _pre_norm(config, combinator, rngs) for view in _used_views(given, sublayer)}
        )
        for sublayer, given in _sublayers(config, combinator)
      }
    )
    names = [sublayer for sublayer, _ in _sublayers(config, combinator)]
    after = {name: decoder_norm(config, rngs) for name in names} if config.post_norm else {}
    self.post_norms = nnx.Dict(after)

  def __call__(
    self,
    site: str,
    views: combinators.Views,
    context: dict[str, Array],
    residual: ValueResidual | None = None,
    window: Window = ALL_EARLIER,
  ) -> tuple[combinators.Views, Array]:
    """Runs the branch of a site.

    Args:
      site: one of the config's `sites`.
      views: what the combinator lets the site read, [B, T, D] each.
      context: `segment_ids` and `positions`, [B, T].
      residual: for the values of `attention`.
      window: of `attention`.

    Returns:
      The normalised views, and the output of the branch [B, T, D].
    """

    def run(sublayer: str, normed: combinators.Views) -> Array:
      if sublayer == "mlp":
        return self.mlp(normed["x"])
      if sublayer == "short_swa":
        return self.short_swa(*_qkv(normed), window=self.short_window, **context)
      return self.attention(*_qkv(normed), window=window, residual=residual, **context)

    return self._branch(site, views, run)

  def decode(
    self,
    site: str,
    views: combinators.Views,
    past: dict[str, KeyValues],
    context: TokensInCache,
    residual: ValueResidual | None = None,
    window: Window = ALL_EARLIER,
  ) -> tuple[combinators.Views, Array, KeyValues | None]:
    """Runs the branch of a site for tokens that follow those in a cache.

    Args:
      site: one of the config's `sites`.
      views: what the combinator lets the site read, [B, T, D] each.
      past: keys and values of earlier tokens, by site.
      context: where the tokens stand.
      residual: for the values of `attention`.
      window: of `attention`.

    Returns:
      The normalised views, the output of the branch [B, T, D], and the new keys and values.
    """
    new = None

    def run(sublayer: str, normed: combinators.Views) -> Array:
      nonlocal new
      if sublayer == "mlp":
        return self.mlp(normed["x"])
      views, mask, positions = _qkv(normed), context.masks[site], context.positions
      if sublayer == "short_swa":
        options = {"length": None, "mask": mask}
        out, new = self.short_swa.decode(*views, past[site], positions=positions, **options)
      else:
        options = {"length": context.length, "mask": context.near(mask, window.size)}
        out, new = self.attention.decode(
          *views, past[site], positions=positions, residual=residual, **options
        )
      return out

    return *self._branch(site, views, run), new

  def values(self, views: combinators.Views) -> Array:
    """Returns the values [B, T, K, C] that `attention` has for these views."""
    return self.attention.values(_qkv(self._normed("attention", views))[2])

  def _branch(
    self, site: str, views: combinators.Views, run: Callable[[str, combinators.Views], Array]
  ) -> tuple[combinators.Views, Array]:
    """Returns the normalised views of a site, the first sublayer's where they differ, and the sum
    of what `run` gives for its sublayers."""
    seen, total = {}, None
    for sublayer in _PARTS.get(site, (site,)):
      normed = self._normed(sublayer, views)
      out = run(sublayer, normed)
      if sublayer in self.post_norms:
        out = self.post_norms[sublayer](out)
      out = self.layout.constrain(out, "batch", "tokens", "embed")
      seen, total = normed | seen, out if total is None else total + out
    return seen, total

  def _normed(self, sublayer: str, views: combinators.Views) -> combinators.Views:
    return {name: norm(views[name]) for name, norm in self.norms[sublayer].items()}


def _short_swa(config: DecoderConfig, options: dict) -> Attention:
  heads = config.short_swa_heads
  if config.short_swa.zero_init:
    options = options | {"out_std": 0.0}
  return Attention(config.d_model, heads, heads, config.d_model // heads, **options)


def _qkv(normed: combinators.Views) -> list[Array]:
  x = normed.get("x")
  return [normed.get(name, x) for name in "qkv"]


def _sublayers(
  config: DecoderConfig, combinator: combinators.Combinator
) -> list[tuple[str, tuple[str, ...]]]:
  """Returns the sublayers of a layer, and the views that the site of each is given."""
  return [
    (sublayer, combinator.view_names(site))
    for site in config.sites
    for sublayer in _PARTS.get(site, (site,))
  ]


def _used_views(given: tuple[str, ...], sublayer: str) -> tuple[str, ...]:
  """Attention takes q, k and v where it is given them; whatever else there is, is not used."""
  named = tuple(view for view in "qkv" if view in given) if sublayer != "mlp" else ()
  return named if len(named) == len("qkv") else (*named, "x")


def _pre_norm(config, combinator: combinators.Combinator, rngs: nnx.Rngs):
  return decoder_norm(config, rngs) if combinator.pre_norm else Identity()


def decoder_norm(config: DecoderConfig, rngs: nnx.Rngs) -> nnx.Module:
  """Returns a norm over D of the config's kind."""
  return norm(
    config.norm,
    config.d_model,
    eps=config.norm_eps,
    bias=config.bias == "all",
    dtype=config.dtype,
    rngs=rngs,
  )
