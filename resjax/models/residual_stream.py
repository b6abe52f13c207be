"""The residual stream of any model, as a value that its blocks hand on.

A model in NNX or Linen that adds residuals,

  for block in self.blocks:             # in a block:
    x = block(x)                        #   x = x + self.attention(self.norm_1(x))
  return self.norm(x)                   #   return x + self.mlp(self.norm_2(x))

runs any combinator when x becomes a `ResidualStream`:

  x = ResidualStream.start(self.residual, x)
  for block in self.blocks:             #   x = x.sublayer("attention", self.norm_1, self.attention)
    x = block(x)                        #   return x.sublayer("mlp", self.norm_2, self.mlp)
  return x.final(self.norm)

The stream knows which site of which layer comes next, so that none is left out. It is a pytree
whose place is static: blocks may be wrapped in `jax.checkpoint`, `nnx.remat` or `linen.remat`. The
scan over stacked blocks is `ResidualStream.through` in NNX, and `resjax.interop.linen.Layers`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from resjax.base import Array, PyTree
from resjax.combinators import Combinator, Layer, Stream, TokenContext
from resjax.models import depth
from resjax.models.layer_stack import Carried, Stack

Norm = Callable[[Array], Array]
Initializer = Callable[..., Array]  # of a key, a shape and a dtype, as in `jax.nn.initializers`


@dataclasses.dataclass(frozen=True)
class _Place:
  """Where a stream is: before site number `site` of layer number `layer`, relative to a base."""

  layer: int = 0
  site: int = 0

  def __repr__(self) -> str:
    """Says what JAX's message about a scan that carries a stream should say."""
    return (
      f"layer {self.layer}, site {self.site} (no scan can carry a ResidualStream: run stacked "
      "blocks with ResidualStream.through, in Linen with resjax.interop.linen.Layers)"
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ResidualStream:
  """A combinator, its depth state, and the site that comes next.

  Attributes:
    combinator: the residual system, for all layers of the model.
    state: its depth state.
    base: in a scan the number of the layer, which is traced; None outside of scans.
    place: the next site, in layers after the base.
  """

  combinator: Combinator
  state: PyTree
  base: Array | None = None
  place: _Place = dataclasses.field(default=_Place(), metadata={"static": True})

  @classmethod
  def start(
    cls, combinator: Combinator, x: Stream, tokens: TokenContext | None = None
  ) -> "ResidualStream":
    """Returns the stream before the first site.

    Args:
      combinator: the residual system.
      x: the embeddings.
      tokens: what combinators that mix tokens must know of them, see `Combinator.init`.

    Raises:
      ValueError: branches must start scaled, see `branch_init`; or x has another width than D.
    """
    combinator.check_scaled_init()
    if x.shape[-1] != combinator.d_model:
      raise ValueError(
        f"x {x.shape} has width {x.shape[-1]}, the combinator d_model={combinator.d_model}; inside "
        "shard_map split rows, not the width, or leave its mesh axis to the compiler (axis_names)"
      )
    return cls(combinator, combinator.init(x, tokens))

  @property
  def layer(self) -> Layer:
    """The number of the layer that the next site belongs to."""
    return self.place.layer if self.base is None else self.base + self.place.layer

  def sublayer(
    self, site: str, norm: Norm | None, branch: Callable[..., Array], views: Sequence[str] = "x"
  ) -> "ResidualStream":
    """Returns the stream after a site; with `standard` it is x + branch(norm(x)).

    Args:
      site: the name of the site, one of the combinator's, in their order.
      norm: the pre-norm of the model, a function of [B, T, D]. It is not called with a combinator
        that replaces it (`Combinator.pre_norm` is False). None: the model has no pre-norm.
      branch: a function of normalised views [B, T, D] that returns an array of that shape.
      views: the arguments of the branch: "x", or "qkv" for an attention whose queries, keys and
        values may be made of different views. Where the combinator tells no views apart, each is x.

    Raises:
      ValueError: the site is not the next one; the branch takes x alone where the combinator has
        views q, k and v with parameters of their own; or it returns something else.
    """
    c = self.combinator
    self._check_next(site)
    offered = c.view_names(site)
    inputs = [view if view in offered else "x" for view in views]
    own = norm if c.pre_norm and norm is not None else _identity
    normed, tape = c.read_normed(self.state, self.layer, site, dict.fromkeys(inputs, own))
    out = branch(*(normed[view] for view in inputs))
    want = normed[inputs[0]].shape
    if getattr(out, "shape", None) != want:
      raise ValueError(
        f"the branch of site {site!r} returns {_described(out)}; it must return one array {want}"
      )
    state = c.write(self.state, self.layer, site, out, normed=normed, tape=tape)
    layers, following = divmod(self.place.site + 1, len(c.sites))
    return dataclasses.replace(
      self, state=state, place=_Place(self.place.layer + layers, following)
    )

  def through(self, layers: nnx.Module, *context: PyTree, remat: str = "none") -> "ResidualStream":
    """Returns the stream after all layers, which run as a scan in memory linear in depth.

    Values equal a Python loop's over layers, each with its row of `layers`, and so do random
    numbers: every layer has keys and counts of its own, as `nnx.split_rngs` and `nnx.vmap` make
    them, and a layer that is computed again for the reverse pass draws the same. What a layer
    changes (counts of random numbers, batch statistics) is changed in its row of `layers`,
    without gradients.

    Args:
      layers: one NNX module whose variables have a leading axis L, as `nnx.vmap` makes it. Called
        as module(stream, *context) with one layer's row, it returns the stream after it.
      *context: arrays that all layers read; gradients flow to arrays of a floating type. Of an
        `nnx.Rngs` among them each layer gets one with a key of its own for every stream.
      remat: what a layer keeps for the reverse pass, see `resjax.models.depth.run`.

    Raises:
      ValueError: a variable has no leading axis L, a layer adds or removes one, or see
        `run_blocks`.
    """
    num_layers = self.combinator.num_layers
    graphdef, given = nnx.split(layers)
    _check_stacked(given, num_layers)
    leaves, structure = jax.tree.flatten(context, is_leaf=_is_rngs)
    rngs = {at: leaf for at, leaf in enumerate(leaves) if _is_rngs(leaf)}
    split = {
      at: {name: jax.random.split(source(), num_layers) for name, source in own.items()}
      for at, own in rngs.items()
    }
    impls = jax.tree.map(_key_impl, (given, split))

    def block(
      row: PyTree, stream: "ResidualStream", *arrays: Array | None
    ) -> tuple["ResidualStream", dict[str, Array]]:
      own, keys = jax.tree.map(_from_data, row, impls)
      before = _by_name(own)
      module = nnx.merge(graphdef, own)
      all_leaves = [nnx.Rngs(**keys[at]) if at in keys else a for at, a in enumerate(arrays)]
      stream = module(stream, *jax.tree.unflatten(structure, all_leaves))
      after = _by_name(nnx.state(module))
      for name in before.keys() ^ after.keys():
        raise ValueError(
          f"a layer adds or removes layer{name}, which a scan cannot hand on; make it with the "
          "layer, or loop over layers in Python"
        )
      return stream, {n: _data(leaf) for n, leaf in after.items() if leaf is not before[n]}

    rows = jax.tree.map(_data, (given, split))
    arrays = [None if at in rngs else leaf for at, leaf in enumerate(leaves)]
    stream, changed = run_blocks(self, rows, block, *arrays, remat=remat)
    if changed:

      def updated(path: Any, leaf: Array, impl: Any) -> Array:
        name = _name(path)
        return _from_data(changed[name], impl) if name in changed else leaf

      nnx.update(layers, jax.tree.map_with_path(updated, given, impls[0]))
    return stream

  def final(self, norm: Norm | None) -> Stream:
    """Returns the output of all layers, through the model's final norm.

    Args:
      norm: a function of [B, T, D], which is not called with a combinator that replaces it
        (`Combinator.final_norm` is False). None: the model has no final norm.

    Raises:
      ValueError: a site has not run.
    """
    c = self.combinator
    if self.place != _Place(c.num_layers):
      raise ValueError(
        f"{self.place.layer} of num_layers={c.num_layers} layers have run when the stream ends; "
        "build the combinator with the number of blocks of the model"
      )
    out = c.final(self.state)
    return norm(out) if c.final_norm and norm is not None else out

  def _check_next(self, site: str) -> None:
    """Raises a ValueError unless this site comes next."""
    c = self.combinator
    if self.base is None and self.place.layer >= c.num_layers:
      raise ValueError(
        f"site {site!r} runs after all num_layers={c.num_layers} layers of the combinator; "
        "build it with the number of blocks of the model"
      )
    following = c.sites[self.place.site]
    if site != following:
      raise ValueError(
        f"site {site!r} runs where {following!r} comes next; build the combinator with "
        f"sites= the sites of a block in their order, here {c.sites}"
      )


def branch_init(combinator: Combinator, init: Initializer) -> Initializer:
  """Returns the initializer for the value, output and MLP kernels of branches.

  It draws the values of `init` times `Combinator.branch_init_gain`, which is not 1 for some
  post-norm combinators.
  """
  if combinator.branch_init_gain != 1:
    combinator.scaled_init = True
  return lambda *args, **kwargs: combinator.branch_init_gain * init(*args, **kwargs)


def run_blocks(
  stream: ResidualStream,
  layers: PyTree,
  block: Callable[..., tuple[ResidualStream, PyTree]],
  *context: PyTree,
  remat: str = "none",
) -> tuple[ResidualStream, PyTree]:
  """Returns the stream after all layers, which run as a scan, and their stacked further results.

  Args:
    stream: a stream before its first site.
    layers: pytree of arrays [L, ...], the stacked parameters of the layers and what else differs
      among them; no random keys, but their data.
    block: a pure function: block(row of a layer, stream, *context) returns the stream after all
      sites of the layer, and a pytree of arrays, through which no gradient flows.
    *context: arrays that all layers read; gradients flow to arrays of a floating type.
    remat: see `resjax.models.depth.run`.

  Raises:
    ValueError: the stream is not at its start, a block leaves out a site, or the combinator cannot
      be scanned.
  """
  c = stream.combinator
  if stream.base is not None or stream.place != _Place():
    raise ValueError("a stream that is not at its first site is scanned; scan all of its layers")

  def step(
    graphdef: nnx.GraphDef, index: Array, carried: Carried,
    shared: PyTree, row: Stack, context: PyTree,
  ) -> tuple[Carried, PyTree]:  # fmt: skip
    combinator = depth.combinator_of(graphdef, shared, row)
    after, found = block(row.layers, ResidualStream(combinator, carried.state, index), *context)
    if not isinstance(after, ResidualStream):
      raise ValueError(f"a block returns {_described(after)}; it must return the stream after it")
    if after.place != _Place(1):
      raise ValueError(f"a block ran {_count(after)} of the sites {c.sites}; run each of them once")
    return Carried(after.state), lax.stop_gradient(found)

  scan = depth.over_layers(c, layers, step, remat=remat)
  with jax.named_scope("layers"):
    carried, found = scan(Carried(stream.state), context)
  return dataclasses.replace(stream, state=carried.state, place=_Place(c.num_layers)), found


def _count(stream: ResidualStream) -> int:
  return stream.place.layer * len(stream.combinator.sites) + stream.place.site


def _described(value: Any) -> str:
  shape = getattr(value, "shape", None)
  return type(value).__name__ if shape is None else f"an array {shape}"


def _identity(x: Array) -> Array:
  return x


def _name(path: Any) -> str:
  return jax.tree_util.keystr(path)


def _by_name(state: PyTree) -> dict[str, Array]:
  return {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(state)}


def _is_rngs(value: Any) -> bool:
  return isinstance(value, nnx.Rngs)


def _check_stacked(variables: PyTree, num_layers: int) -> None:
  """Raises a ValueError unless all arrays have a leading axis for the layers."""
  for path, leaf in jax.tree.leaves_with_path(variables):
    if jnp.shape(leaf)[:1] != (num_layers,):
      raise ValueError(
        f"layers{_name(path)} has the shape {jnp.shape(leaf)}, without a leading axis of "
        f"num_layers={num_layers}; make the blocks by nnx.vmap, and their keys under "
        f"nnx.split_rngs(splits={num_layers})"
      )


def _key_impl(leaf: Array) -> Any:
  """Returns the kind of random keys; "" if an array holds none."""
  return jax.random.key_impl(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else ""


def _data(leaf: Array) -> Array:
  """Returns the integer data of random keys, which loops can index and stack; else the array."""
  is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
  return jax.random.key_data(leaf) if is_key else leaf


def _from_data(data: Array, impl: Any) -> Array:
  """Inverts `_data`, given the kind of random keys that `_key_impl` found."""
  return data if impl == "" else jax.random.wrap_key_data(data, impl=impl)
