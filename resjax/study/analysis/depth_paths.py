"""Residual paths on which layers are left out, change places, or are differentiated by themselves.

The definitions are those of DepthBench (arXiv 2609.32534, analysis/depth_probes.py). A layer that
is left out is the identity:

- Where layers hand on a state of fixed size (strategy `carry`), one stream or several, the state
  passes unchanged.
- Attention residuals: its outputs are no sources. The read that follows it is its newest source
  (the *next-output* rule), if it is a boundary: with `attn_res` the first read of every layer and
  the output, with `block_attn_res` that of a depth block's first layer and the output.
- Mixes of layers' outputs, and streams that something enters before a layer: its sublayers write
  zero. What the layer reads, it hands on, or adds nothing to.

Layers that change places exchange all that is theirs: their sublayers, and in a carried path all
that depends on their number, such as the 1/√l of `lns`. The query with which the first site of a
layer reads its sources belongs to the layer before it, whose *right boundary* it is, and goes with
that one. What weighs sources by their numbers belongs to a place, and stays.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import Array, PyTree
from resjax.combinators import (
  AttnRes,
  BlockAttnRes,
  Combinator,
  DepthState,
  EnteredStream,
  Layer,
  LayerMixer,
  ResidualStreams,
  Sources,
  TokenContext,
  Views,
)
from resjax.models import Decoder, SiteVisit
from resjax.study.analysis.wrapped_path import WrappedPath, with_path


def check_supported(decoder: Decoder) -> None:
  """Checks that leaving out and exchanging layers of a decoder is defined.

  Raises:
    ValueError: it is not.
  """
  inner, name = decoder.combinator, decoder.config.residual.name
  known = isinstance(inner, LayerMixer | EnteredStream) or type(inner) in (AttnRes, BlockAttnRes)
  if inner.strategy != "carry" and not known:
    raise ValueError(
      f"depth probes of residual.name={name!r} are not defined: its layers write sources of which "
      "none can be left out; they are defined for paths of fixed size, attn_res, block_attn_res, "
      "dense mixes and streams that something enters before a layer"
    )
  if isinstance(inner, AttnRes) and inner.scores.weights == "static":
    raise ValueError(
      "depth probes of 'attn_res' with weights='static' are not defined: a weight belongs to the "
      "number of a source, which changes where a layer is left out; they are for softmax, sigmoid"
    )
  for setting in ("value_mixing", "value_residual"):
    if (value := getattr(decoder.config, setting)) != "none":
      raise ValueError(
        f"depth probes with config.model.{setting}={value!r} are not defined: a layer that is left "
        "out still hands on its values; they are for 'none'"
      )
  if decoder.config.dense_layers and decoder.config.routed_layers:
    moe = decoder.config.moe
    raise ValueError(
      f"depth probes with config.model.moe.first_dense={moe.first_dense} and every={moe.every} are "
      "not defined, as layers with and without experts cannot change places; they are for experts "
      "in all layers or in none"
    )


def rearranged(decoder: Decoder, order: Array, keep: Array) -> Decoder:
  """Returns a decoder whose place l has layer order[l], and leaves it out where keep[l] is False.

  Args:
    decoder: a decoder of which `check_supported` holds.
    order: a permutation of the layers, int [L]; may be traced.
    keep: bool [L]; may be traced.
  """
  inner = decoder.combinator
  if inner.strategy == "carry":
    changed = nnx.merge(*nnx.split(decoder))
    changed.combinator = _Carried(inner, order, keep)
  elif isinstance(inner, AttnRes | BlockAttnRes):
    changed = with_path(decoder, _Sources(_with_boundaries(inner, order), keep))
  else:
    changed = with_path(decoder, _WithoutLayers(inner, keep))
  graphdef, layers = nnx.split(changed.layers)
  changed.layers = nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf[order], layers))
  return changed


def differentiated(decoder: Decoder, probe: Array, moved: Array) -> Decoder:
  """Returns a decoder whose gradient in `moved` is that of every layer by itself.

  The values are those of the decoder where `moved` is zero. In the reverse pass what comes from
  later layers is dropped behind every layer, and `probe` put in its place: the gradient in moved[l]
  is the product Jₗᵀ v, with J_l = ∂z_{l+1} / ∂z_l. Thus one reverse pass serves all layers.

  Args:
    decoder: a decoder for which `has_jacobians` holds.
    probe: v [k, B, T, D], see `carried`.
    moved: what is added to the states z_l, [L, k, B, T, D].
  """
  changed = nnx.merge(*nnx.split(decoder))
  changed.combinator = _Taps(changed.combinator, probe, moved)
  return changed


def has_jacobians(combinator: Combinator) -> bool:
  """Returns whether layers are functions of the state z before them, see `differentiated`.

  Where sites read residual streams by what the site before computed they depend on that, too.
  """
  own = getattr(combinator, "read_site", "own") == "own"
  return combinator.strategy == "carry" and own


def carried(path: Combinator, state: PyTree) -> Array:
  """Returns all that a carried state holds of tokens, [k, B, T, D]; k is 1 for a single stream."""
  return jnp.concatenate(_parts(path, state)[0])


def state_after(visits: Sequence[SiteVisit]) -> Array:
  """Returns the carried state z_{l+1} behind the last site of a layer, [k, B, T, D]."""
  return carried(visits[-1].combinator, visits[-1].after)


def state_before(visits: Sequence[SiteVisit]) -> Array:
  """Returns what the first site of a layer reads, z_l, [1, B, T, D].

  Within a depth block of attention residuals it is the running sum.
  """
  first = visits[0]
  path = first.combinator
  if isinstance(path, _Sources) and first.layer % path.inner.layers_per_block:
    return path.newest(first.before, first.layer, first.site)[None]
  return first.views()["x"][None]


def layer_mix(visits: Sequence[SiteVisit]) -> Array | None:
  """Returns the product of the mixing matrices of a layer's writes [R, R, B, T].

  A stream r becomes Σ_s M_rs of the streams s. None: the rearranged path has no such matrices.
  """
  product = None
  for visit in visits:
    path = visit.combinator
    mix = path.mixes(visit) if isinstance(path, _Carried) else None
    if mix is None:
      return None
    product = mix if product is None else jnp.einsum("rs...,sq...->rq...", mix, product)
  return product


def _parts(path: Combinator, state: PyTree) -> tuple[list[Array], list[int], PyTree]:
  """Returns the arrays of a carried state [k, B, T, D], the numbers of its leaves that they are,
  and the state without a write that waits."""
  inner = path.inner if isinstance(path, WrappedPath) else path
  if isinstance(inner, ResidualStreams):
    streams = inner.streams(state)
    return [streams], [0], inner.settled(streams)
  leaves = jax.tree.leaves(state)
  chosen = [
    at
    for at, leaf in enumerate(leaves)
    if leaf.ndim >= 3
    and leaf.shape[-1] == inner.d_model
    and jnp.issubdtype(leaf.dtype, jnp.inexact)
  ]
  return [leaves[at].reshape(-1, *leaves[at].shape[-3:]) for at in chosen], chosen, state


class _Within(NamedTuple):
  """A carried state between the sites of a layer, and the one that the layer began with."""

  state: PyTree
  entered: PyTree


class _Carried(WrappedPath):
  """A path whose state passes a layer that is left out unchanged.

  Args:
    inner: a combinator whose strategy is `carry`.
    order: the layer of each place [L].
    keep: whether it runs [L].
  """

  def __init__(self, inner: Combinator, order: Array, keep: Array):
    super().__init__(inner)
    self.strategy, self.order, self.keep = inner.strategy, nnx.Variable(order), nnx.Variable(keep)

  def read(self, state: PyTree, layer: Layer, site: str) -> tuple[Views, Any]:
    own = state.state if isinstance(state, _Within) else state
    return self.inner.read(own, self.order[...][layer], site)

  def write(self, state: PyTree, layer: Layer, site: str, out: Array, **rest: Any) -> PyTree:
    own, entered = state if isinstance(state, _Within) else (state, state)
    number = self.order[...][layer]
    after = self.inner.write(own, number, site, out, **rest)
    if site != self.sites[-1]:
      return _Within(after, entered)
    runs = self.keep[...][layer]
    return jax.tree.map(lambda new, old: jnp.where(runs, new, old), after, entered)

  def mixes(self, visit: SiteVisit) -> Array | None:
    """Returns M [R, R, ...] of a write of residual streams; None: the path has none."""
    if not isinstance(self.inner, ResidualStreams):
      return None
    state = visit.before.state if isinstance(visit.before, _Within) else visit.before
    found = self.inner.coefficients(state, self.order[...][visit.layer], visit.site)[1]
    shape = *[self.inner.num_streams] * 2, *visit.out.shape[:-1]
    if found is None:
      found = jnp.expand_dims(jnp.eye(shape[0]), range(2, len(shape)))
    return jnp.broadcast_to(found, shape)


class _WithoutLayers(WrappedPath):
  """A path to which the sublayers of layers that are left out write zero, in a Python loop.

  Args:
    inner: any combinator.
    keep: whether a layer runs [L].
  """

  def __init__(self, inner: Combinator, keep: Array):
    super().__init__(inner)
    self.keep = nnx.Variable(keep)

  def write(self, state: PyTree, layer: Layer, site: str, out: Array, **rest: Any) -> PyTree:
    out = jnp.where(self.keep[...][layer], out, 0)
    return super().write(state, layer, site, out, **rest)


class _Sources(_WithoutLayers):
  """Attention residuals, without the sources of layers that are left out.

  A read sees an array with all sources that are there, in their order, and their number.
  """

  inner: AttnRes | BlockAttnRes

  def read(self, state: DepthState, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`. The tape is the state."""
    first, every = site == self.sites[0], self.inner.layers_per_block
    boundary = first and layer % every == 0
    bank, count = self._present(state, layer, site)
    newest = bank[count - 1]
    seen = _of_bank(bank, count, state.running)
    if isinstance(self.inner, BlockAttnRes) and not boundary:
      # It reads a running sum behind the sources; where that holds nothing yet, the newest source.
      seen = _of_bank(bank, count - 1, (newest, *state.running[1:]))
    views, _ = self.inner.read(seen, layer, site)
    if boundary and layer:
      views = {name: self._next(layer, view, newest) for name, view in views.items()}
    return views, state

  def final(self, state: DepthState) -> Array:
    bank, count = self._present(state, self.num_layers, self.sites[0])
    read = self.inner.final(_of_bank(bank, count))
    return self._next(self.num_layers, read, bank[count - 1])

  def newest(self, state: DepthState, layer: Layer, site: str) -> Array:
    """Returns the running sum of a depth block, or where it is empty the newest source."""
    bank, count = self._present(state, layer, site)
    return bank[count - 1]

  def _next(self, layer: Layer, read: Array, newest: Array) -> Array:
    """Returns what is read at the boundary before a layer, by the next-output rule."""
    return jnp.where(self.keep[...][layer - 1], read, newest)

  def _present(self, state: DepthState, layer: Layer, site: str) -> tuple[Array, Array]:
    """Returns the sources that are there at a site, before all others, and their number."""
    keep, every, arrays = self.keep[...], self.inner.layers_per_block, [*state.sources.recent]
    blocks = isinstance(self.inner, BlockAttnRes)
    written = jnp.repeat(keep, 1 if blocks else len(self.sites))
    if blocks:
      written = jnp.stack([keep[at : at + every].any() for at in range(0, self.num_layers, every)])
    there = [jnp.ones(1, bool), written[: len(arrays) - 1]]
    if blocks and (layer % every or site != self.sites[0]) and layer < self.num_layers:
      runs = keep[layer] & (site != self.sites[0])
      there.append((keep[layer - layer % every : layer].any() | runs)[None])
      arrays.append(state.running[0])
    present = jnp.concatenate(there)
    return jnp.stack(arrays)[jnp.argsort(~present, stable=True)], jnp.sum(present)


def _of_bank(bank: Array, count: Array, running: PyTree = None) -> DepthState:
  """Returns a state whose sources are the first `count` of a bank [N, B, T, D]."""
  return DepthState(Sources((), bank, count), running)


def _with_boundaries(inner: AttnRes | BlockAttnRes, order: Array) -> AttnRes | BlockAttnRes:
  """Returns attention residuals with the readers of layers in another order.

  Of the L + 1 reads at boundaries, the last of which is the output, read l + 1 goes with layer l.
  """
  changed = nnx.merge(*nnx.split(inner))
  boundaries = jnp.concatenate([jnp.zeros(1, order.dtype), order + 1])
  for name in inner.per_layer:
    rows = getattr(changed, name)
    moved = rows[...][order]
    last = getattr(changed, f"final_{name}", None)
    if last is not None:
      reads = jnp.concatenate([rows[...][:, 0], last[...][None]])[boundaries]
      moved, last[...] = moved.at[:, 0].set(reads[:-1]), reads[-1]
    rows[...] = moved
  return changed


class _Taps(WrappedPath):
  """A carried path whose reverse pass treats every layer by itself, see `differentiated`."""

  per_layer = ("moved",)

  def __init__(self, inner: Combinator, probe: Array, moved: Array):
    super().__init__(inner)
    self.strategy, self.probe = inner.strategy, nnx.Variable(probe)
    self.first = nnx.Variable(moved[0])
    self.moved = nnx.Variable(jnp.concatenate([moved[1:], jnp.zeros_like(moved[:1])]))

  def init(self, x: Array, tokens: TokenContext | None = None) -> PyTree:
    state = super().init(x, tokens)
    return self._moved(state, carried(self, state) + self.first[...])

  def write(self, state: PyTree, layer: Layer, site: str, out: Array, **rest: Any) -> PyTree:
    after = super().write(state, layer, site, out, **rest)
    if site != self.sites[-1]:
      return after
    tapped = _tapped(carried(self, after), self.probe[...])
    return self._moved(after, tapped + self._layer_row(self.moved, layer))

  def _moved(self, state: PyTree, values: Array) -> PyTree:
    """Returns a carried state that holds other values [k, B, T, D] of tokens."""
    parts, chosen, state = _parts(self, state)
    leaves, structure = jax.tree.flatten(state)
    ends = np.cumsum([len(part) for part in parts])[:-1]
    for at, part in zip(chosen, jnp.split(values, ends), strict=True):
      leaves[at] = part.reshape(leaves[at].shape).astype(leaves[at].dtype)
    return jax.tree.unflatten(structure, leaves)


@jax.custom_vjp
def _tapped(x: Array, cotangent: Array) -> Array:
  """Returns x, whose cotangent is the one that is given, whatever comes back."""
  return x


def _tapped_forward(x: Array, cotangent: Array) -> tuple[Array, Array]:
  return x, cotangent


def _tapped_reverse(cotangent: Array, _: Array) -> tuple[Array, Array]:
  return cotangent, jnp.zeros_like(cotangent)


_tapped.defvjp(_tapped_forward, _tapped_reverse)
