"""Running a stack of layers through a combinator.

A layer is, for each of its sites, a read, a branch and a write. `run_layers` repeats that over L
stacked layers: as a scan whose treatment of the depth state the combinator chooses by
`Combinator.strategy`, or as a Python loop with the same
values and gradients. It can also collect something of every layer: what the branches keep for
decoding, or what a probe measures. `run` is the short form for models that want the output alone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Float

from resjax.base import Array, PyTree
from resjax.combinators import Combinator, Layer, Norms, SourceWeights, Stream, TokenContext, Views
from resjax.models.block_loop import block_loop
from resjax.models.layer_stack import Carried, LayerStep, Stack
from resjax.nn import PRODUCT

# Ordered by how much is recomputed, the least first: a search for memory goes through them.
_POLICIES = {
  "dots": jax.checkpoint_policies.save_only_these_names(PRODUCT),
  "full": jax.checkpoint_policies.nothing_saveable,
}
REMAT = ("none", *_POLICIES)


class SiteVisit(NamedTuple):
  """What one site of one layer read, computed and wrote.

  Attributes:
    combinator: the combinator, with this layer's row of its `per_layer` parameters.
    layer: the number of the layer, 0..L-1; may be traced.
    site: the name of the site.
    before: the depth state that the site read.
    out: the output of the branch.
    after: the depth state after `Combinator.write`.
    kept: further results of the branch after its output, in a tuple that may be empty.
    normed: the normalised views that the branch saw.
  """

  combinator: Combinator
  layer: Layer
  site: str
  before: PyTree
  out: Float[Array, "... D"]
  after: PyTree
  kept: tuple[PyTree, ...]
  normed: Views

  def views(self) -> Views:
    """Returns the views that the site read, before any norm."""
    return self.combinator.read(self.before, self.layer, self.site)[0]

  def closed(self) -> Stream:
    """Returns the output that the layers would have if they ended after this site."""
    return self.combinator.final_after(self.after, self.layer, self.site)

  def depth_weights(self) -> SourceWeights | None:
    """Returns the weights of the sources in this read, see `Combinator.depth_weights`."""
    return self.combinator.depth_weights(self.before, self.layer, self.site)

  def stream_factor(self) -> Float[Array, "..."] | None:
    """Returns the factor of the stream in this write, see `Combinator.stream_factor`."""
    return self.combinator.stream_factor(self.layer, self.site, self.normed)


# branch(layer parameters, site, views, context) -> normalised views, output, and what it keeps.
Branch = Callable[[PyTree, str, Views, PyTree], tuple[Any, ...]]
# pre_norms(layer parameters, site) -> what normalises the views of the site.
PreNorms = Callable[[PyTree, str], Norms]
# collect(visits of one layer, context) -> pytree of arrays.
Collect = Callable[[Sequence[SiteVisit], PyTree], PyTree]


class Relay(NamedTuple):
  """Arrays besides the depth state that every layer passes to the next one.

  Attributes:
    first: the arrays that the first layer gets, of a floating type.
    give: give(context, arrays) returns the context for the branches of a layer.
    take: take(layer parameters, visits of the layer, arrays) returns the arrays for the next
      layer, of the same shapes and dtypes.
  """

  first: PyTree
  give: Callable[[PyTree, PyTree], PyTree]
  take: Callable[[PyTree, Sequence[SiteVisit], PyTree], PyTree]


def joined(relays: Sequence[Relay]) -> Relay | None:
  """Returns one relay that does what several do; None without any."""
  if not relays:
    return None

  def give(context: PyTree, handed: PyTree) -> PyTree:
    for relay, own in zip(relays, handed, strict=True):
      context = relay.give(context, own)
    return context

  def take(layer: PyTree, visits: Sequence[SiteVisit], handed: PyTree) -> PyTree:
    pairs = zip(relays, handed, strict=True)
    return tuple(relay.take(layer, visits, own) for relay, own in pairs)

  return Relay(tuple(relay.first for relay in relays), give, take)


def run(
  combinator: Combinator, layers: PyTree, x: Stream, branch: Branch, *,
  pre_norms: PreNorms | None = None,
  context: PyTree = None, tokens: TokenContext | None = None,
  remat: str = "none", unroll: bool = False,
) -> Stream:  # fmt: skip
  """Runs L layers through a combinator: init, L times (read, branch, write), final.

  Args:
    combinator: the residual system, for L layers.
    layers: pytree of arrays [L, ...], the stacked parameters of the layers.
    x: embeddings.
    branch: what runs at a site, a pure function: branch(layer parameters, site, views, context)
      returns the normalised views and the output, an array like x.
    pre_norms: pre_norms(layer parameters, site) returns the norm of each view that the branch
      uses, see `Combinator.read_normed`; then the branch gets normalised views, and a combinator
      may fuse norms into its reads. Default: the branch gets the views as they are read.
    context: arrays that every branch may read (positions, segment ids, values of the first layer);
      gradients flow to arrays of a floating type.
    tokens: segments and caches for combinators that mix tokens, see `Combinator.init`.
    remat: one of `REMAT`: what a layer keeps for the reverse pass. `none`: all; `full`: its inputs;
      `dots`: its inputs and the results of its linear maps.
    unroll: whether a Python loop runs the layers instead of a scan; for tests and very few layers,
      and under `jax.disable_jit` in any case.

  Returns:
    The combinator's final read.

  Raises:
    ValueError: `layers` has another number of layers than the combinator, remat is unknown, or
      the combinator cannot be scanned.
  """
  last, _ = run_layers(
    combinator, layers, x, branch, pre_norms=pre_norms, context=context, tokens=tokens,
    remat=remat, unroll=unroll,
  )  # fmt: skip
  return combinator.final(last.state)


def run_layers(
  combinator: Combinator, layers: PyTree, x: Stream, branch: Branch,
  collect: Collect | None = None, *,
  pre_norms: PreNorms | None = None, relay: Relay | None = None,
  context: PyTree = None, tokens: TokenContext | None = None,
  remat: str = "none", unroll: bool = False,
) -> tuple[Carried, PyTree]:  # fmt: skip
  """`run` without the final read, with results that are collected in every layer.

  Takes the arguments of `run`, and:

  Args:
    branch: as in `run`; its further results after the output become `SiteVisit.kept`.
    collect: a pure function that closes over no array: collect(visits, context) gets the visits to
      the sites of a layer, in their order, and returns a pytree of arrays. These are stacked over
      layers, so a probe sums over tokens or width first. Default: nothing is collected.
    relay: arrays that layers pass on besides the depth state; they are kept once per layer for
      the reverse pass. Default: none.
    context: arrays that `branch` and `collect` may read, see `run`.

  Returns:
    What the last layer leaves, its depth state and the arrays of `relay`; and the results of
    `collect`, with a leading axis L and without gradients.

  Raises:
    ValueError: see `run`.
  """
  step = partial(_layer, branch, pre_norms, collect, relay)
  scan = over_layers(combinator, layers, step, remat=remat, unroll=unroll)
  carried = Carried(combinator.init(x, tokens), None if relay is None else relay.first)
  with jax.named_scope("layers"):
    carried, found = scan(carried, context)
  return carried, lax.stop_gradient(found)


def over_layers(
  combinator: Combinator, layers: PyTree, step: Callable[..., tuple[Carried, PyTree]], *,
  remat: str = "none", unroll: bool = False,
) -> Callable[[Carried, PyTree], tuple[Carried, PyTree]]:  # fmt: skip
  """Returns a function of the first layer's carry and the context, which runs L layers.

  The function returns the carry after the last layer, and the stacked results of `step`, with a
  leading axis L. Takes the arguments of `run`.

  Args:
    step: a pure function: step(graphdef, index, carried, shared, row, context) returns what the
      next layer is handed, and a pytree of arrays that are found; see `combinator_of`.

  Raises:
    ValueError: see `run`.
  """
  if remat not in REMAT:
    allowed = ", ".join(REMAT)
    raise ValueError(f"remat={remat!r} (config.model.remat) is not known; allowed: {allowed}")
  combinator.check_scaled_init()
  unroll = unroll or jax.config.jax_disable_jit  # type: ignore[attr-defined]  # has no stub
  if combinator.strategy == "loop" and not unroll:
    raise ValueError(
      "the layers of this combinator differ in shape and cannot be scanned; "
      "set config.model.depth='loop', or loop over the blocks of your own model in Python"
    )
  graphdef, *parts = nnx.split(combinator, lambda path, _: path[0] in combinator.per_layer, ...)
  rows, shared = parts
  stack = Stack(layers, rows)
  for leaf in jax.tree.leaves(stack):
    if leaf.shape[0] != combinator.num_layers:
      raise ValueError(
        f"a stacked parameter has {leaf.shape[0]} layers, its combinator {combinator.num_layers}"
      )
  layer: LayerStep = partial(step, graphdef)
  if remat != "none":
    # The loop numbers the layers by Python ints, which combinators may look up.
    static = (0,) if unroll else ()
    layer = jax.checkpoint(layer, policy=_POLICIES[remat], prevent_cse=False, static_argnums=static)
  strategy = _loop if unroll else _STRATEGIES[combinator.strategy]
  return partial(strategy, combinator, layer, shared, stack)


def _loop(
  combinator: Combinator, layer: LayerStep, shared: PyTree, stack: Stack,
  carried: Carried, context: PyTree,
) -> tuple[Carried, PyTree]:  # fmt: skip
  """Runs the layers one after another in Python, for any combinator."""
  found = []
  for index in range(combinator.num_layers):
    row = jax.tree.map(lambda leaf, i=index: leaf[i], stack)
    carried, of_layer = layer(index, carried, shared, row, context)
    found.append(of_layer)
  return carried, jax.tree.map(lambda *rows: jnp.stack(rows), *found)


def _carry(
  combinator: Combinator, layer: LayerStep, shared: PyTree, stack: Stack,
  carried: Carried, context: PyTree,
) -> tuple[Carried, PyTree]:  # fmt: skip
  """Runs the layers in a scan that carries the state."""

  def body(carried: Carried, indexed: tuple[Array, Stack]) -> tuple[Carried, PyTree]:
    index, row = indexed
    return layer(index, carried, shared, row, context)

  return lax.scan(body, carried, (jnp.arange(combinator.num_layers), stack))


# What a scan does with the depth state, by `Combinator.strategy`. Each strategy is called as
# strategy(combinator, layer, shared, stack, carried, context), with layer(index, carried, shared,
# row of the stack, context) for one layer, and returns what the last layer leaves and what the
# layers gave besides, with a leading axis L. What layers hand on besides the depth state (`Relay`)
# is kept once per layer.
_STRATEGIES: dict[str, Callable[..., tuple[Carried, PyTree]]] = {
  # The state has a fixed shape and is kept once per layer.
  "carry": _carry,
  # The state is a list of sources: the last layer of a depth block appends to a bank, and what the
  # layers of a block carry among them is kept once per layer.
  "depth_blocks": block_loop,
  # The same, where every layer appends.
  "history": block_loop,
}


def combinator_of(graphdef: nnx.GraphDef, shared: PyTree, row: Stack) -> Combinator:
  """Returns the combinator with one layer's row of its `per_layer` parameters."""
  return nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf[None], row.combinator), shared)


def _layer(
  branch: Branch,
  pre_norms: PreNorms | None,
  collect: Collect | None,
  relay: Relay | None,
  graphdef: nnx.GraphDef,
  index: Layer,
  carried: Carried,
  shared: PyTree,
  row: Stack,
  context: PyTree,
) -> tuple[Carried, PyTree]:
  """Returns what layer `index` leaves for the next one, and what `collect` made of its visits."""
  state, handed = carried
  of_layer = context if relay is None else relay.give(context, handed)
  combinator = combinator_of(graphdef, shared, row)
  visits = []
  for site in combinator.sites:
    with jax.named_scope("depth_mixing"):
      views, tape = _read(combinator, state, index, site, pre_norms, row.layers)
    normed, out, *kept = branch(row.layers, site, views, of_layer)
    with jax.named_scope("depth_mixing"):
      after = combinator.write(state, index, site, out, normed=normed, tape=tape)
    visits.append(SiteVisit(combinator, index, site, state, out, after, tuple(kept), normed))
    state = after
  if relay is not None:
    handed = relay.take(row.layers, visits, handed)
  return Carried(state, handed), None if collect is None else collect(visits, context)


def _read(
  combinator: Combinator,
  state: PyTree,
  layer: Layer,
  site: str,
  pre_norms: PreNorms | None,
  parameters: PyTree,
) -> tuple[Views, Any]:
  """Returns the input of a site's branch, normalised if there are `pre_norms`, and the tape."""
  if pre_norms is None:
    return combinator.read(state, layer, site)
  return combinator.read_normed(state, layer, site, pre_norms(parameters, site))


def first_views(
  combinator: Combinator, layers: PyTree, x: Stream, branch: Branch, site: str, *,
  pre_norms: PreNorms | None = None, context: PyTree = None, tokens: TokenContext | None = None,
) -> Views:  # fmt: skip
  """Returns the inputs of a branch of the first layer; takes arguments like `run`."""
  first = jax.tree.map(lambda leaf: leaf[0], layers)
  state = combinator.init(x, tokens)
  for earlier in combinator.sites[: combinator.sites.index(site)]:
    views, tape = _read(combinator, state, 0, earlier, pre_norms, first)
    normed, out, *_ = branch(first, earlier, views, context)
    state = combinator.write(state, 0, earlier, out, normed=normed, tape=tape)
  return _read(combinator, state, 0, site, pre_norms, first)[0]
