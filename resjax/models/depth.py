"""Running a stack of layers through a combinator.

A layer is, for each site, read, branch, write. `run` repeats it over L stacked layers: as a scan
whose treatment of the depth state the combinator chooses (`Combinator.strategy`, see
`resjax.models.depth_strategies`), or as a Python loop that gives the same values and gradients.
`run_keeping` is the same with an output per layer, for decoding with a cache; `run_probed` lets a
probe look at what stands where in every layer.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import jax
from jax import lax

from resjax.combinators.base import OUTPUT, Combinator, TokenContext, Views
from resjax.models.depth_strategies import Visit, drive, visit
from resjax.typing import Array, PyTree

Branch = Callable[[PyTree, str, Views, PyTree], tuple[Views, Array]]
KeepingBranch = Callable[[PyTree, str, Views, PyTree], tuple[Views, Array, PyTree]]
Probe = Callable[[Sequence[Visit], PyTree], PyTree]
Remat = Literal["none", "full", "dots"]


def run(
  combinator: Combinator,
  layers: PyTree,
  x: Array,
  branch: Branch,
  *,
  context: PyTree = None,
  tokens: TokenContext | None = None,
  remat: Remat = "none",
  unroll: bool = False,
) -> Array:
  """Runs L layers through a combinator: init, L times (read, branch, write), final.

  Args:
    combinator: the residual system, for L layers.
    layers: pytree of arrays [L, ...], the stacked parameters of the layers.
    x: embeddings [B, T, D].
    branch: what runs at a site, a pure function: branch(layer parameters, site, views, context)
      returns the normalised views and the output [B, T, D].
    context: arrays that every branch may read (positions, segment ids, values of the first layer);
      gradients flow to those of a floating type.
    tokens: for combinators that mix tokens, see `Combinator.init`.
    remat: what a layer keeps for the reverse pass. `none`: all; `full`: its inputs; `dots`: its
      inputs and the results of its linear maps.
    unroll: a Python loop over layers instead of a scan; for tests and very few layers.

  Returns:
    The combinator's final read [B, T, D].

  Raises:
    ValueError: `layers` has another number of layers than the combinator, remat is unknown, or
      the combinator cannot be scanned.
  """

  def keep_nothing(layer, site, views, context):
    return *branch(layer, site, views, context), None

  options = {"tokens": tokens, "remat": remat, "unroll": unroll}
  state, _ = drive(combinator, layers, x, keep_nothing, _kept, context, **options)
  return combinator.final(state)


def run_keeping(
  combinator: Combinator,
  layers: PyTree,
  x: Array,
  branch: KeepingBranch,
  *,
  context: PyTree = None,
  tokens: TokenContext | None = None,
  unroll: bool = False,
) -> tuple[Array, dict[str, PyTree], PyTree]:
  """`run` for decoding: branches return a third thing, which is kept for the tokens that follow.

  What earlier tokens left in a layer is part of `layers`. No gradient flows through what is kept.

  Args:
    combinator: see `run`.
    layers: see `run`.
    x: embeddings [B, T, D].
    branch: as in `run`, with a third output, a pytree of arrays or None.
    context: see `run`.
    tokens: for combinators that mix tokens, see `Combinator.init`.
    unroll: see `run`.

  Returns:
    The combinator's final read [B, T, D]; by site what its branches kept, with leading axis L; and
    the combinator's `next_cache`.

  Raises:
    ValueError: `layers` has another number of layers than the combinator.
  """
  options = {"tokens": tokens, "remat": "none", "unroll": unroll}
  state, kept = drive(combinator, layers, x, branch, _kept, context, **options)
  return combinator.final(state), lax.stop_gradient(kept), combinator.next_cache(state)


def run_probed(
  combinator: Combinator,
  layers: PyTree,
  x: Array,
  branch: KeepingBranch,
  probe: Probe,
  *,
  context: PyTree = None,
  seen: PyTree = None,
  tokens: TokenContext | None = None,
  unroll: bool = False,
) -> tuple[Array, Array | None, PyTree]:
  """`run` without gradients, where a probe looks at every layer and gives what is to be kept of it.

  What the probe returns is stacked over layers, so it should have summed over tokens or width.

  Args:
    combinator: see `run`.
    layers: see `run`.
    x: embeddings [B, T, D].
    branch: see `run_keeping`.
    probe: probe(visits, seen) gets the visits to the sites of a layer, in order, and returns a
      pytree of arrays. A pure function that closes over no array.
    context: see `run`.
    seen: arrays that every probe may read.
    tokens: for combinators that mix tokens, see `Combinator.init`.
    unroll: see `run`.

  Returns:
    The combinator's final read [B, T, D]; its `depth_weights` for that read; and what the probe
    returned, with leading axis L.

  Raises:
    ValueError: as `run`.
  """

  def branch_of(layer, site, views, contexts):
    return branch(layer, site, views, contexts["branch"])

  def collect(visits, contexts):
    return probe(visits, contexts["probe"])

  contexts = {"branch": context, "probe": seen}
  options = {"tokens": tokens, "remat": "none", "unroll": unroll}
  state, probed = drive(combinator, layers, x, branch_of, collect, contexts, **options)
  weights = combinator.depth_weights(state, combinator.num_layers, OUTPUT)
  return combinator.final(state), weights, probed


def first_views(
  combinator: Combinator,
  layers: PyTree,
  x: Array,
  branch: KeepingBranch,
  site: str,
  *,
  context: PyTree = None,
  tokens: TokenContext | None = None,
) -> Views:
  """Returns the views that a site of the first layer reads; arguments as in `run_keeping`."""
  first = jax.tree.map(lambda leaf: leaf[0], layers)
  state = combinator.init(x, tokens)
  for earlier in combinator.sites[: combinator.sites.index(site)]:
    state = visit(combinator, branch, first, state, 0, earlier, context).after
  return combinator.read(state, 0, site)[0]


def _kept(visits, context):
  return {visit.site: visit.kept for visit in visits}
