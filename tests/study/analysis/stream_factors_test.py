"""The factors of the stream, where they attenuate it, and what a text says of learned ones."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from resjax.base.sharding import Layout
from resjax.models.model_def import ModelDef
from resjax.study.analysis.report.results import Results, from_json, to_json
from resjax.study.analysis.stream_factors import StreamFactors, concentration, measure
from tests.helpers import alignment, decoders, layouts
from tests.helpers.alignments import alignment as any_alignment
from tests.study.analysis.measurement_test import MESHES, batch

SITES = ("attention", "mlp")
L = 3
MEANS = np.array([[0.5, 0.8], [1.2, 1.0], [0.25, 2.0]])
GIVEN = StreamFactors(SITES, MEANS, np.zeros((L, 2)))


def model(name, **options):
  return decoders.decoder(decoders.config("llama", name, options))


def factors_of(decoder, rows=None):
  rows = batch() if rows is None else rows
  parts = [
    {name: array[part] for name, array in rows.items()} for part in np.split(np.arange(4), 2)
  ]
  return measure(decoder, parts, batch_size=2)


def sigmoid(x):
  return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def normed(decoder, rows):
  """What every site reads, after its norm, by NumPy: float64 [L, S, tokens, D]."""
  read = np.stack(alignment.states(decoder, rows)["read"][:-1]).astype(np.float64)
  read = read[:, np.asarray(rows["segment_ids"]) > 0].reshape(L, 2, -1, read.shape[-1])
  read /= np.sqrt(np.mean(read**2, axis=-1, keepdims=True) + decoder.config.norm_eps)
  norms = nnx.to_pure_dict(nnx.state(decoder))["layers"]["norms"]
  scales = np.stack([norms[site]["x"]["scale"] for site in SITES], axis=1)
  return read * scales[:, :, None]


def test_weights_and_attenuations_are_products_of_factors():
  np.testing.assert_allclose(GIVEN.of_layers, [0.4, 1.2, 0.5])
  np.testing.assert_allclose(GIVEN.attenuations, [0.6, 0, 0.5])
  np.testing.assert_allclose(
    GIVEN.write_weights, [[0.8 * 1.2 * 0.5, 1.2 * 0.5], [0.5, 0.5], [2.0, 1.0]]
  )
  np.testing.assert_allclose(GIVEN.embedding_weight, 0.4 * 1.2 * 0.5)
  np.testing.assert_allclose(GIVEN.last_share, 0.5 / 1.1)
  none = dataclasses.replace(GIVEN, means=np.full((L, 2), 0.999))
  assert none.last_share is None  # 0.006 in all


def test_the_weights_of_writes_are_those_of_a_loop():
  writes = np.random.default_rng(0).normal(size=(L, 2, 5))
  embedding = x = np.arange(5.0)
  for layer in range(L):
    for site in range(2):
      x = MEANS[layer, site] * x + writes[layer, site]
  weighed = (GIVEN.write_weights[..., None] * writes).sum(axis=(0, 1))
  np.testing.assert_allclose(weighed + GIVEN.embedding_weight * embedding, x)


@pytest.mark.parametrize(
  "options", [{"layers": (1,)}, {"layers": (1, -1), "scope": "layer"}, {"cut_sites": ("mlp",)}]
)
def test_cuts_are_found_where_they_are(options):
  decoder = model("attenuation", alpha=0.25, **options)
  found, sites = factors_of(decoder), options.get("cut_sites", SITES)
  cut = [layer % L for layer in options.get("layers", (-1,))]
  if options.get("scope") == "layer":
    sites = SITES[:1]  # Its factor stands for the whole layer.
  want = [[0.25 if i in cut and site in sites else 1.0 for site in SITES] for i in range(L)]
  np.testing.assert_allclose(found.means, want, rtol=1e-6)
  np.testing.assert_allclose(found.deviations, np.zeros((L, 2)), atol=1e-6)


@pytest.mark.parametrize("granularity", ["layer", "depth_mixture", "token", "channel"])
def test_learned_factors_are_those_of_numpy(granularity):
  decoder, rows = model("gate", granularity=granularity), batch()
  gate = decoder.combinator
  bias = np.asarray(gate.bias[...], np.float64)
  if granularity == "depth_mixture":
    share = np.exp(bias) / np.exp(bias).sum()
    want = np.tile((1 - (share - 1 / L))[:, None, None], (1, 2, 1))
  elif granularity == "layer":
    want = 2 * sigmoid(bias)[..., None]
  else:
    weight, x = np.asarray(gate.weight[...], np.float64)[:, :, None], normed(decoder, rows)
    inner = weight * x
    if granularity == "token":
      want = 2 * sigmoid(inner.sum(axis=-1) + bias[..., None])
    else:
      want = 2 * sigmoid(inner + bias[:, :, None]).reshape(L, 2, -1)
  found = factors_of(decoder, rows)
  np.testing.assert_allclose(found.means, want.mean(axis=-1), rtol=1e-5)
  np.testing.assert_allclose(found.deviations, want.std(axis=-1), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name, rules", [("gate", "long_context"), ("standard", "fsdp_tp")])
def test_eight_devices_find_what_one_finds(name, rules):
  options = {"granularity": "channel"} if name == "gate" else {}
  config, rows = decoders.config("llama", name, options, vocab_size=32), batch(8, 32)
  params, found = nnx.to_pure_dict(nnx.state(decoders.decoder(config))), []
  for layout in (Layout(), layouts.layout(rules, **MESHES[rules])):
    made = ModelDef(config, layout)
    if layout.has_mesh:
      params = jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding, made.abstract))
    found.append(measure(made.bind(params), [rows], batch_size=8))
  one, eight = found
  if name == "standard":
    assert one is eight is None
  else:
    np.testing.assert_allclose(eight.means, one.means, rtol=1e-5)
    np.testing.assert_allclose(eight.deviations, one.deviations, rtol=1e-4)


def test_other_systems_have_none():
  assert factors_of(model("standard")) is None


def test_factors_are_in_the_results():
  (found,) = from_json(to_json([Results(any_alignment(), factors=GIVEN, prefix="a: nothing")]))
  assert (found.factors.sites, found.prefix) == (SITES, "a: nothing")
  np.testing.assert_array_equal(found.factors.means, MEANS)
  text = to_json([Results(any_alignment(), factors=dataclasses.replace(GIVEN, sites=("mlp",)))])
  with pytest.raises(ValueError, match=r"factors.means must have 3 rows of 1 numbers"):
    from_json(text)


def attenuating(*layers):
  return StreamFactors(("mlp",), 1 - np.array(layers, float)[:, None], np.zeros((len(layers), 1)))


LAST = attenuating(0.02, 0.02, 0.02, 0.5)


@pytest.mark.parametrize(
  ("models", "verdict"),
  [
    ([LAST, attenuating(0.1, 0, 0, 0.6), LAST, LAST, LAST], "concentrated"),
    ([attenuating(0.2, 0.1, 0.2, 0.2), attenuating(0.2, 0.3, 0.1, 0.1)], "not concentrated"),
    ([attenuating(0.0, 0.7, 0.0, 0.3 + i / 100) for i in range(5)], "undecided"),
    ([attenuating(0.0, 0.3, 0.0, 0.25 + i / 100) for i in range(5)], "undecided"),
    ([LAST, LAST, attenuating(0.01, 0, 0, 0.03)], "nothing to locate"),
    ([LAST], "undecided"),
  ],
)
def test_a_verdict_needs_shares_and_the_place_of_the_largest(models, verdict):
  assert concentration(models).verdict == verdict


def test_the_shares_have_an_interval():
  found = concentration([attenuating(0.1, 0.1), attenuating(0.1, 0.3)])
  assert found.shares == pytest.approx((0.5, 0.75)) and found.last_is_largest == 1
  half = 12.706 * 0.125  # t of one degree of freedom, times the standard error
  assert found.interval == pytest.approx((0.625 - half, 0.625 + half), rel=1e-4)
