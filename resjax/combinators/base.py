"""The combinator protocol: what a site reads from the depth state, and how it writes to it."""

import abc
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeGuard

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from resjax.base import Array, PyTree, aligned, wide_dtype
from resjax.base.sharding import Layout
from resjax.combinators import costs

Stream = Float[Array, "*tokens D"]  # a vector for each token: what sites read and write
Streams = Float[Array, "R *tokens D"]
SourceWeights = Float[Array, "N ..."]  # of N sources, for each token where they depend on it
Views = Mapping[str, Float[Array, "... D"]]
Layer = int | Int[Array, ""]  # the index of a layer: an int in a loop, a traced scalar in a scan
Strategy = Literal["carry", "depth_blocks", "history", "loop"]
# Families of systems, in the order in which tables show them; `others` are systems of your own.
FAMILIES = ("scalars", "gates", "streams", "depth readers", "dense mixes", "others")
OUTPUT = "output"  # stands for the site of `Combinator.final`, the last read
SIZES = ("num_layers", "d_model", "sites", "layout", "rngs")  # of every combinator, not options


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PreNorm:
  """The norm in front of a branch, which a combinator may fuse into its read: an RMS norm.

  y = x / sqrt(mean(x²) + eps) ⊙ scale over the last axis, in float32 or wider.

  Attributes:
    scale: the gain [D].
    eps: the number that is added to the mean square.
  """

  scale: Array
  eps: float = dataclasses.field(metadata={"static": True})

  @jax.named_scope("norm")
  def __call__(self, x: Array) -> Array:
    """Returns the normalised x [..., D] in its dtype."""
    wide = x.astype(wide_dtype(x))
    inverse_rms = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
    return (wide * inverse_rms * aligned(self.scale, x)).astype(x.dtype)


# By view, what normalises it: a `PreNorm`, or any function of an array [..., D].
Norms = Mapping[str, Callable[[Array], Array]]


def are_pre_norms(norms: Norms) -> TypeGuard[Mapping[str, PreNorm]]:
  """Returns whether every view has a `PreNorm`, which a read may fuse."""
  return all(isinstance(norm, PreNorm) for norm in norms.values())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenContext:
  """What a combinator that mixes tokens has to know about them; the others ignore it.

  Attributes:
    segment_ids: [B, T]; tokens mix within a segment only. None means one segment per row. With a
      cache a row is one segment, 1, and 0 is padding, which comes last among the T tokens.
    cache: in decoding with a cache what earlier tokens left, see `Combinator.decode_cache`;
      otherwise None.
  """

  segment_ids: Array | None = None
  cache: PyTree = None


class Combinator(nnx.Module):
  """The base class of all residual combinators.

  A decoder, or any other model with layers, drives a combinator c like this:

    state = c.init(x)                              # x: [B, T, D]
    for layer in range(c.num_layers):
      for site in c.sites:
        views, tape = c.read(state, layer, site)   # views["x"]: [B, T, D]
        normed = {k: norm(v) for k, v in views.items()}  # or both lines as one, `read_normed`
        out = branch[site](normed)                 # [B, T, D]
        state = c.write(state, layer, site, out, normed=normed, tape=tape)
    y = c.final(state)                             # [B, T, D]

  `resjax.models.depth.run` is that loop as a scan. Leading axes are free: [..., D] works wherever
  [B, T, D] is written, as long as all calls agree. Only a combinator that mixes tokens, which is
  one with a `decode_cache`, needs [B, T, D].

  A subclass implements `init`, `read`, `write` and `final`. If it has options, its `__init__` takes
  them as keywords with defaults, passes all other keywords on to this class, and raises a
  ValueError for a value that is out of range. `help` and `inspect.signature` of the class list both
  together. Costs are derived from the class and are not declared.

  Attributes:
    family: one of `FAMILIES`, by which tables group systems.
    num_layers: L.
    d_model: D.
    sites: the names of the sites of a layer, in the order in which they run.
    layout: the mesh on which kernels run. The default is one device.
    strategy: how a scan over layers treats the state. `carry` means a state of fixed shape.
      `history` and `depth_blocks` belong to a `SourceCombinator`, see there. `loop` means that the
      parameters of layers differ in shape, so that only a Python loop can run them.
    pre_norm: whether the model normalises what a branch reads. A combinator that sets it to False
      returns views that are normalised already, normalises in `write` (post-norm), or needs no
      norm.
    final_norm: whether the model normalises what `final` returns. A combinator that sets it to
      False returns an output that is normalised already.
    branch_init_gain: a factor by which the model multiplies the initial value, output and MLP
      kernels of its branches. Post-norm systems choose it by depth.
    scaled_init: whether the model does so, which it says itself (`build` takes it as an argument,
      `resjax.models.residual_stream.branch_init` sets it). See `check_scaled_init`.
    equals_standard_at_init: whether a fresh combinator computes what `standard` computes, up to
      the eps of norms, in a model where every branch begins with a scale-free norm.
    needs_pre_norms: whether that fails in a model whose branches read what no norm has touched
      (config.model.pre_norm=False, as in OLMo 2): a fresh read is the stream times a number, or
      is normalised already.
    equals_standard_from_norms: whether one that took the gains of a model by `from_norms` computes
      what `standard` computes in that model, up to the eps of norms, also where a fresh one does
      not.
    decayed_parameters: the names of the parameters that take weight decay; the others never do.
    per_layer: the names of the parameters that have a leading axis L and of which layer i uses row
      i alone. A scan hands each layer a combinator that has just its row of them, with a leading
      axis of 1. Thus their gradients stay per layer, and sharded rows are gathered when needed.
  """

  __signature__: ClassVar[inspect.Signature]

  family: ClassVar[str] = "others"
  strategy: Strategy = "carry"
  pre_norm: bool = True
  final_norm: bool = True
  branch_init_gain: float = 1.0
  equals_standard_at_init: bool = True
  needs_pre_norms: bool = False
  equals_standard_from_norms: bool = False
  decayed_parameters: tuple[str, ...] = ()
  per_layer: tuple[str, ...] = ()

  def __init__(
    self,
    *,
    num_layers: int,
    d_model: int,
    sites: tuple[str, ...] = ("attention", "mlp"),
    layout: Layout | None = None,
    rngs: nnx.Rngs | None = None,
  ):
    """Checks and keeps what every combinator has; rngs are for subclasses that draw values."""
    if num_layers < 1 or d_model < 1:
      raise ValueError(
        f"num_layers={num_layers} and d_model={d_model} must be at least 1; "
        "set config.model.num_layers and config.model.d_model"
      )
    if isinstance(sites, str) or not sites or len(set(sites)) != len(sites):
      raise ValueError(f"sites={sites!r} must be one or more different names")
    self.num_layers = num_layers
    self.d_model = d_model
    self.sites = tuple(sites)
    self.scaled_init = False
    self.layout = Layout() if layout is None else layout

  def __init_subclass__(cls, **kwargs: Any) -> None:
    """Gives the class a signature with the keywords of all its `__init__` methods."""
    super().__init_subclass__(**kwargs)
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
      if "__init__" in vars(base):
        _, *own = _signature(vars(base)["__init__"]).parameters.values()
        named = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
        found |= {parameter.name: parameter for parameter in named if parameter.name not in found}
        if named == own:  # nothing is passed on
          break
    order = sorted(found.values(), key=lambda p: (p.kind, p.default is not p.empty))
    cls.__signature__ = inspect.Signature(order)

  @abc.abstractmethod
  def init(self, x: Stream, tokens: TokenContext | None = None) -> PyTree:
    """Returns the depth state before the first site.

    Args:
      x: embeddings.
      tokens: for combinators that mix tokens. None means one segment per row, and no cache.
    """

  @abc.abstractmethod
  def read(self, state: PyTree, layer: Layer, site: str) -> tuple[Views, Any]:
    """Returns what a site reads: views [B, T, D] by `view_names`, and a tape for `write`."""

  def read_normed(self, state: PyTree, layer: Layer, site: str, norms: Norms) -> tuple[Views, Any]:
    """Returns the views of `read`, each through its norm, and the tape.

    A combinator may fuse a `PreNorm` into its read; the values are the same up to rounding.

    Args:
      state, layer, site: as in `read`.
      norms: by view, what normalises it; views without a norm are left out.
    """
    views, tape = self.read(state, layer, site)
    return {name: norm(views[name]) for name, norm in norms.items()}, tape

  @abc.abstractmethod
  def write(
    self, state: PyTree, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> PyTree:  # fmt: skip
    """Returns the depth state after a site.

    Args:
      state: the state that `read` saw.
      layer: 0..L-1; may be traced.
      site: one of `sites`.
      out: the output of the branch.
      normed: the normalised views that the branch saw, without those that it did not use.
      tape: the second output of the matching `read`.
    """

  @abc.abstractmethod
  def final(self, state: PyTree) -> Stream:
    """Returns the output of all layers, before the final norm of the model if it has one.

    It has one where `final_norm` is True.
    """

  def final_after(self, state: PyTree, layer: Layer, site: str) -> Stream:
    """Returns the output that the layers would have if they ended after a site.

    After the last site of the last layer it equals `final`. Where `final` mixes sources, those that
    do not exist yet are left out; each combinator says how.

    Args:
      state: what `write` returned for the site. A scan over layers has not yet closed the depth
        block of the layer.
      layer: 0..L-1; may be traced.
      site: one of `sites`.
    """
    return self.final(state)

  def view_names(self, site: str) -> tuple[str, ...]:
    """Returns the names of the views that `read` gives a site.

    The view x is always present. The views q, k and v are present where a system computes them
    differently from x; an attention uses x in place of a missing one.
    """
    return ("x",)

  def source_names(self) -> tuple[str, ...]:
    """Returns the names of the N sources that `depth_weights` weighs, or none."""
    return ()

  def depth_weights(self, state: PyTree, layer: Layer, site: str) -> SourceWeights | None:
    """Returns how much a site reads of every source, for plots: the mean over heads.

    Args:
      state: what `read` sees at the site.
      layer: 0..L-1, may be traced; L for the last read.
      site: one of `sites`, or `OUTPUT` for the last read.

    Returns:
      [N, ...], which broadcasts against [N, B, T] and is 0 for sources that do not exist yet; None
      if the site weighs no sources.
    """
    return None

  def stream_factor(self, layer: Layer, site: str, normed: Views) -> Float[Array, "..."] | None:
    """Returns α of a write α x + f(x), by which a site multiplies the stream.

    Args:
      layer: 0..L-1; may be traced.
      site: one of `sites`.
      normed: the normalised views that the branch saw.

    Returns:
      α, which broadcasts against [B, T, D]; None for a system that has no such factors.
    """
    return None

  def decode_cache(self, batch_size: int, dtype: jax.typing.DTypeLike) -> PyTree:
    """Returns what later tokens need of earlier ones, before the first token.

    A combinator that mixes nothing across tokens needs nothing, which is None. What it keeps is of
    tokens, never of padding: each row has its own number of them, which may be 0 in a call.

    Args:
      batch_size: B.
      dtype: of the activations.
    """
    return None

  def next_cache(self, state: PyTree) -> PyTree:
    """Returns the cache for the tokens that follow, from the state after the last layer."""
    return None

  def from_norms(self, gains: Mapping[str, Float[Array, "..."]]) -> dict[str, Float[Array, "..."]]:
    """Returns parameters by name that make reads normalise like the norms of a given model.

    A model with this combinator can start from the weights of a model with RMS norms only if the
    combinator takes the gains of the norms that it replaces (see `pre_norm` and `final_norm`). By
    default it takes none.

    Args:
      gains: the gains of the RMS norms that it replaces: by site, [L, D] for each site that the
        model had, and of the final norm by `OUTPUT`, [D].
    """
    return {}

  def check_scaled_init(self) -> None:
    """Raises a ValueError where branches must start scaled, and the model does not say they do.

    A combinator whose `branch_init_gain` is not 1 calls it in `init`.
    """
    if self.branch_init_gain != 1 and not self.scaled_init:
      norms = "" if self.pre_norm else ", leave out norms before branches (pre_norm is False)"
      raise ValueError(
        f"{type(self).__name__} starts branches {self.branch_init_gain:.3g} times as large; "
        f"multiply their value, output and MLP kernels by its branch_init_gain{norms}, and then "
        "say so: combinator.scaled_init = True"
      )

  def num_parameters(self) -> int:
    """Returns the number of parameters, see `resjax.combinators.costs`."""
    return costs.num_parameters(self)

  def state_bytes_per_token(self, dtype: jax.typing.DTypeLike) -> int:
    """Returns the bytes of the depth state after the last layer for one token in this dtype."""
    return costs.state_bytes_per_token(self, dtype)

  def flops_per_token(self) -> int:
    """Returns the forward FLOPs of all reads and writes for one token.

    They are counted from a trace of `read`, `write` and `final`, see `resjax.combinators.costs`. A
    combinator that runs a kernel of its own, into which the count cannot look, overrides this.
    """
    return costs.flops_per_token(self)

  @property
  def num_sublayers(self) -> int:
    """The number of layers times the number of sites."""
    return self.num_layers * len(self.sites)

  def _row(self, parameter: nnx.Variable, layer: Layer, site: str) -> Array:
    """Returns parameter[layer, site] of a parameter [L or 1, sites, ...]."""
    return self._layer_row(parameter, layer)[self.sites.index(site)]

  def _layer_row(self, parameter: nnx.Variable, layer: Layer) -> Array:
    """Returns parameter[layer]; a parameter with one row already belongs to that layer."""
    value = parameter[...]
    return value[0] if value.shape[0] == 1 else value[layer]


def _signature(function: Any) -> inspect.Signature:
  """Returns a signature whose annotations are types, also where a module writes them as texts."""
  try:
    return inspect.signature(function, eval_str=True)
  except NameError:  # one of them is imported for type checkers alone
    return inspect.signature(function)
