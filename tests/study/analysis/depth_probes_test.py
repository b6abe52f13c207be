"""Depth probes of models whose answers are known, and of loops by hand over sources and layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.base import NOT_ASKED
from resjax.combinators import TokenContext
from resjax.models import Decoder, MoEConfig
from resjax.models.decode_cache import TokensInRows
from resjax.nn.rope import Rotation
from resjax.study.analysis import depth_passes, depth_paths, depth_probes
from resjax.study.analysis.depth_passes import signs
from resjax.study.analysis.depth_probes import effective_rank, probe
from tests.helpers import decoders
from tests.study.analysis.interventions_test import SIZES, text

LOSSES = ("causal", "pruning", "permutation")
LAYERS = 3


def changed(name, parameters, options=None, style="llama", fresh=False, **fields):
  """A decoder with random parameters, some of them multiplied: {words of a path: factors [L]}.

  A fresh one has a combinator whose parameters have their first values.
  """
  config = decoders.config(style, name, options, **(SIZES | fields))
  graphdef, state = nnx.split(decoders.drawn(config))
  if fresh:
    made = combinators.build(
      name, num_layers=LAYERS, d_model=config.d_model, sites=config.sites, rngs=nnx.Rngs(0),
      scaled_init=True, **config.residual.options,
    )  # fmt: skip
    state["combinator"] = nnx.state(made)

  def change(path, leaf):
    words = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
    for wanted, factors in parameters.items():
      if set(wanted.split()) <= set(words):
        leaf = leaf * np.float32(factors).reshape(-1, *[1] * (leaf.ndim - 1))
    return leaf

  return nnx.merge(graphdef, jax.tree.map_with_path(change, state))


def without_output(layer):
  """The factors with which a layer writes nothing."""
  keep = np.arange(LAYERS) != layer
  return {"layers o_proj": keep, "layers down_proj": keep}


@functools.cache
def probes_without_output(name):
  decoder = changed(name, without_output(1), fresh=name != "standard")
  asked = (*LOSSES, "angular") if name == "denseformer" else (*LOSSES, "angular", "jacobian")
  return probe(decoder, text(), model="it", probes=asked, vectors=2)


@pytest.mark.parametrize(
  "name", ["standard", "hyper_connections", pytest.param("denseformer", marks=pytest.mark.release)]
)
def test_a_layer_that_writes_nothing_is_missed_nowhere(name):
  found = probes_without_output(name)
  assert found.angular.mean[1, 2] == 0 < found.angular.mean[0, 1]
  assert found.causal.mean[1, 2] == 0 < found.causal.mean[0, 2]
  assert found.skipped.mean[1] == 0 and (found.skipped.mean[[0, 2]] != 0).all()
  np.testing.assert_allclose(found.permutation.mean, 0, atol=1e-6)  # it commutes with any layer
  if found.jacobian is not None:
    assert found.jacobian.mean[1] < 1e-6 < found.jacobian.mean[0]


def test_layers_that_are_pruned_are_those_of_least_loss_and_half_of_all():
  found = probes_without_output("standard")
  assert len(found.pruned_layers) == 1
  least = int(np.argmin(found.skipped.mean))
  assert found.pruned_layers == (least,)
  assert found.pruned.mean[0] == found.skipped.mean[least]


@pytest.mark.parametrize(
  ("name", "options"),
  [
    ("standard", {}),
    pytest.param("block_attn_res", {"layers_per_block": 3}, marks=pytest.mark.release),
    pytest.param("attn_res", {}, marks=pytest.mark.release),
    pytest.param("lns", {}, marks=pytest.mark.release),
  ],
)
def test_layers_commute_that_add_constants(name, options):
  """Layers 0 and 1 write their biases; where all reads are alike, only the sum of both counts."""
  last = np.arange(LAYERS) == 2
  constant = {"layers o_proj kernel": last, "layers down_proj kernel": last}
  alike = {"combinator query": np.zeros(LAYERS), "combinator final_query": 0}
  decoder = changed(name, constant | alike, options, style="gpt2")
  found = probe(decoder, text(), model="it", probes=LOSSES)
  assert found.permutation.mean[0] < 1e-6 < found.permutation.mean[1]
  assert abs(found.skipped.mean[:2]).min() > 1e-3


def softmax_read(query, gain, eps, sources):
  """The read of attention residuals, from its equation."""
  v = jnp.stack(sources)
  keys = v / jnp.sqrt(jnp.mean(v * v, axis=-1, keepdims=True) + eps) * gain
  return jnp.einsum("n...,n...d->...d", jax.nn.softmax(keys @ query, axis=0), v)


def by_hand(decoder, batch, order, removed=()):
  """The states z and the hidden states of attention residuals, over a list of sources.

  It follows DepthBench: layers in an order, those at the places `removed` are the identity, the
  mix behind such a place is its newest source, and the mix at a boundary goes with the layer on its
  left. Depth blocks end after the same places.
  """
  c = decoder.combinator
  every = getattr(c, "layers_per_block", 1) if c.strategy == "depth_blocks" else 0
  graphdef, stacked = nnx.split(decoder.layers)
  tokens = TokensInRows(batch["positions"], batch["segment_ids"])
  x = decoder.embed(batch["inputs"], batch["positions"])
  sources, running, states = [x], None, []
  mixers = [(c.query[...][i, 0], c.key_scale[...][i, 0]) for i in range(LAYERS)]
  mixers.append((c.final_query[...], c.final_key_scale[...]))
  mixers = [mixers[0], *(mixers[layer + 1] for layer in order)]
  for place in range(LAYERS + 1):
    boundary = place == LAYERS or not every or place % every == 0
    if boundary and running is not None:
      sources, running = [*sources, running], None
    there = sources if running is None else [*sources, running]
    follows = boundary and place - 1 in removed
    z = there[-1] if follows else softmax_read(*mixers[place], c.eps, there)
    inside = running if running is not None else sources[-1]
    states.append(z if boundary or place == 0 else inside)
    if place == LAYERS:
      return jnp.stack(states), decoder.final_norm(z)
    if place in removed:
      continue
    layer = nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf[order[place]], stacked))  # noqa: B023
    for site in c.sites:
      there = sources if running is None else [*sources, running]
      row = c.query[...][order[place], 1], c.key_scale[...][order[place], 1]
      read = z if site == "attention" else softmax_read(*row, c.eps, there)
      normed = {"x": layer.norms[site]["x"](read)}
      rotation = Rotation((decoder.config.layer_ropes[place],))
      out = decoders.branch(layer, site, normed, tokens, rotation)
      if every:
        running = out if running is None else running + out
      else:
        sources = [*sources, out]


def nats(decoder, batch, hidden):
  """The summed losses, from logits of all tokens."""
  log_p = jax.nn.log_softmax(decoder.logits(hidden))
  own = jnp.take_along_axis(log_p, jnp.maximum(batch["targets"], 0)[..., None], axis=-1)[..., 0]
  return -np.sum(np.asarray(own, np.float64) * asked(batch))


def asked(batch):
  """Which tokens have a target."""
  return (batch["segment_ids"] != 0) & (batch["targets"] != NOT_ASKED)


@pytest.mark.parametrize(
  ("name", "options"),
  [
    ("block_attn_res", {"layers_per_block": 2}),
    pytest.param("attn_res", {}, marks=pytest.mark.release),
  ],
)
def test_attention_residuals_are_those_of_a_loop_over_lists_of_sources(name, options):
  decoder, data = changed(name, {}, options), text()
  found = probe(decoder, data, model="it", probes=(*LOSSES, "angular"))
  skipped, swapped, causal = np.zeros(LAYERS), np.zeros(2), np.zeros((LAYERS, LAYERS))
  loss = seen = targets = 0
  run = jax.jit(by_hand, static_argnums=(2, 3))
  for batch in data.batches:
    arrays = {name: np.asarray(array) for name, array in batch.items()}
    here = arrays["segment_ids"] > 0
    whole, hidden = run(decoder, arrays, (0, 1, 2))
    loss, seen = loss + nats(decoder, arrays, hidden), seen + here.sum()
    targets += asked(arrays).sum()
    for layer in range(LAYERS):
      without, hidden = run(decoder, arrays, (0, 1, 2), (layer,))
      skipped[layer] += nats(decoder, arrays, hidden)
      old, new = np.diff(whole, axis=0), np.diff(without, axis=0)
      ratio = np.linalg.norm(new - old, axis=-1) / np.linalg.norm(old, axis=-1)
      causal[layer] += (ratio * here).sum(axis=(1, 2))
    for at, order in enumerate(((1, 0, 2), (0, 2, 1))):
      swapped[at] += nats(decoder, arrays, run(decoder, arrays, order)[1])
  np.testing.assert_allclose(found.loss, loss / targets, rtol=1e-5)
  np.testing.assert_allclose(found.skipped.mean, (skipped - loss) / targets, atol=2e-5)
  np.testing.assert_allclose(found.permutation.mean, abs(swapped / loss - 1), atol=1e-5)
  above = np.triu_indices(LAYERS, 1)
  np.testing.assert_allclose(found.causal.mean[above], causal[above] / seen, rtol=1e-4)


def test_jacobians_are_those_of_single_layers():
  decoder, data = changed("standard", {}), text()
  found = probe(decoder, data, model="it", probes=("jacobian",), vectors=3, seed=5)
  graphdef, stacked = nnx.split(decoder.layers)
  rotation = Rotation((decoder.config.layer_ropes[0],))

  def run(x, row, tokens):
    layer = nnx.merge(graphdef, row)
    for site in ("attention", "mlp"):
      normed = {"x": layer.norms[site]["x"](x)}
      x = x + decoders.branch(layer, site, normed, tokens, rotation)
    return x

  @jax.jit
  def of_sums(x, row, tokens):
    """Row o has the derivatives of Σ_t z_{l+1, t, o}, summed over tokens; and z_{l+1}."""
    here = (tokens.segment_ids > 0)[..., None]
    rows = jax.jacrev(lambda x: jnp.sum(run(x, row, tokens) * here, (0, 1)))(x)
    return jnp.sum(rows * here, (1, 2)), run(x, row, tokens)

  sums, count = np.zeros((LAYERS, 16, 16)), 0
  for batch in data.batches:
    tokens = TokensInRows(*(jnp.asarray(batch[name]) for name in ("positions", "segment_ids")))
    x = decoder.embed(batch["inputs"], batch["positions"])
    count += np.sum(batch["segment_ids"] > 0)
    for index in range(LAYERS):
      found_sums, x = of_sums(x, jax.tree.map(lambda leaf, i=index: leaf[i], stacked), tokens)
      sums[index] += found_sums
  apart = sums / count - np.eye(16)
  products = np.einsum("vo,lod->vld", signs(3, 1, 16, 5).reshape(3, 16), apart)
  want = np.sqrt(np.mean(np.sum(products**2, -1), 0) / 16)
  np.testing.assert_allclose(found.jacobian.mean, want, rtol=1e-4)
  assert (found.jacobian.half > 0).all()


def test_effective_ranks_are_the_number_of_streams_of_the_identity_and_1_of_the_uniform_mix():
  uniform = np.full((4, 4), 0.25)
  np.testing.assert_allclose(effective_rank(np.stack([np.eye(4), uniform])), [4, 1], rtol=1e-12)
  half = np.diag([0.5, 0.5, 0, 0])
  np.testing.assert_allclose(effective_rank(half), 2, rtol=1e-12)


def test_effective_ranks_are_those_of_products_of_a_models_matrices():
  fresh = changed("hyper_connections", {}, fresh=True)
  found = probe(fresh, text(), model="it", probes=("rank",))
  np.testing.assert_allclose(found.effective_rank.mean, 2, rtol=1e-6)
  # Static weights of two streams at every site, from each stream to each: they do not commute.
  alpha = jnp.asarray(fresh.combinator.alpha[...])
  weights = np.random.default_rng(0).uniform(0.2, 2, (LAYERS, 2, 2, 2)).astype(np.float32)
  fresh.combinator.alpha[...] = alpha.at[..., 1:].set(weights)
  found = probe(fresh, text(), model="it", probes=("rank",))
  product, want = np.eye(2), []
  for layer in weights:
    product = product @ layer[0] @ layer[1]
    want.append(effective_rank(product))
  np.testing.assert_allclose(found.effective_rank.mean, want, rtol=1e-5)


REFUSED = {"delta_attn_res", "delta_block_attn_res", "delta_ablation"}


def test_every_system_is_probed_or_refused_by_its_name():
  batch = jax.tree.map(jnp.asarray, dict(text().batches[0]))
  places = jnp.arange(LAYERS), jnp.ones(LAYERS, bool)
  others = [("mhc", {"read_site": "previous", "head": "previous"}), ("gate", {"scope": "layer"})]
  for name, options in [*((name, None) for name in combinators.names()), *others]:
    decoder = decoders.shapes(decoders.config("llama", name, options, **SIZES))
    if name in REFUSED:
      with pytest.raises(ValueError, match=f"depth probes of residual.name='{name}' are not"):
        depth_probes.check(decoder)
      continue
    graphdef, state = nnx.split(decoder)

    def run(state, order, keep, graphdef=graphdef):
      model = nnx.merge(graphdef, state)
      traced = depth_passes.traced(depth_paths.rearranged(model, order, keep), batch)
      return traced[0], model.combinator.init(traced[0][0, 0], TokenContext())

    states, start = jax.eval_shape(run, state, *places)
    held = sum(leaf.size for leaf in jax.tree.leaves(start) if leaf.shape[-3:] == states.shape[2:])
    width = 1 if decoder.combinator.strategy != "carry" else held // (batch["inputs"].size * 16)
    if isinstance(decoder.combinator, combinators.ResidualStreams):
      width = decoder.combinator.num_streams  # without the output that is not yet written
    assert states.shape == (LAYERS + 1, width, *batch["inputs"].shape, 16), name


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"probes": ["angle"]}, "probes='angle' are not known; give some of angular, causal"),
    ({"pairs": "some"}, "pairs='some' is not known; allowed: neighbours, all"),
    ({"vectors": 1}, "vectors=1 gives no interval; give 2 or more"),
  ],
)
def test_options_are_checked(options, message):
  with pytest.raises(ValueError, match=message):
    probe(changed("standard", {}), text(), model="it", **options)


def test_weights_of_numbered_sources_are_refused():
  decoder = decoders.shapes(decoders.config("llama", "attn_res", {"weights": "static"}, **SIZES))
  with pytest.raises(ValueError, match="weights='static' are not defined"):
    depth_probes.check(decoder)
  for setting, value in (("value_mixing", "depth"), ("value_residual", "learned")):
    mixed = decoders.config("llama", **{setting: value}, **SIZES)
    with pytest.raises(ValueError, match=f"{setting}='{value}' are not defined"):
      depth_probes.check(Decoder(mixed, rngs=nnx.Rngs(0)))
  some = decoders.config("llama", moe=MoEConfig(2, 2, first_dense=1), **SIZES)
  with pytest.raises(ValueError, match="first_dense=1 and every=1 are not defined"):
    depth_probes.check(decoders.shapes(some))


def test_one_layer_has_no_neighbours_and_what_is_never_defined_is_said():
  config = decoders.config("llama", "standard", **(SIZES | {"num_layers": 1}))
  found = probe(decoders.drawn(config), text(), model="it", probes=("permutation", "angular"))
  assert found.pairs == () and found.permutation.mean.shape == (0,)
  with pytest.raises(ValueError, match="probes='rank' leave nothing: no effective rank"):
    probe(decoders.drawn(config), text(), model="it", probes=("rank",))
