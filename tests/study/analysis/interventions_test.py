"""Sensitivities equal those of a decoder in float64 NumPy and of the combinator of the paper."""

import dataclasses
import functools
import json
import logging

import jax
import numpy as np
import pytest
from flax import nnx

from resjax.combinators import Attenuation
from resjax.data.eval_text import measured_text
from resjax.data.tokenizer import ByteTokenizer
from resjax.study.analysis.interventions import sensitivity
from resjax.study.analysis.measurement import measure
from resjax.study.analysis.path_intervention import attenuate
from resjax.study.analysis.sensitivity import Sensitivity
from tests.data.conftest import make_texts
from tests.helpers import decoders, layouts, reference
from tests.helpers.losses import nats_per_token

SIZES = {"vocab_size": 257, "max_positions": 16}
ALPHAS = (0.0, 0.25, 1.0)


def text(max_tokens=50, batch_size=1):
  options = {"seq_len": 16, "batch_size": batch_size, "max_tokens": max_tokens}
  return measured_text("words", make_texts(9), ByteTokenizer(), **options)


@functools.cache
def made(style, **changes):
  return decoders.drawn(decoders.config(style, **(SIZES | changes)))


def losses(decoder, text, **options):
  return sensitivity(decoder, text, model="it", alignment=False, **options)


def untouched(decoder, text, options=None):
  return nats_per_token(decoder, text.batches, options)


def test_alpha_1_is_the_untouched_model_bit_for_bit():
  decoder = made("llama", dtype="bfloat16")
  found = losses(decoder, text(), alphas=(1.0, 0.9, 1.0), layers=(-1, 0, 2))
  want = untouched(decoder, text())
  assert (found.layers, found.alphas) == ((0, 2), (0.9, 1.0))
  assert found.baseline_loss == want
  assert (found.loss[:, 1] == want).all() and (found.loss[:, 0] != want).all()


@pytest.mark.parametrize(
  ("style", "changes"),
  [
    ("llama", {"dtype": "bfloat16"}),
    pytest.param("gpt2", {}, marks=pytest.mark.release),
    pytest.param("llama", {}, marks=pytest.mark.release),
    pytest.param("llama", {"depth": "loop"}, marks=pytest.mark.release),
  ],
)
def test_factors_of_1_are_no_factors_bit_for_bit(style, changes):
  """Compilers may leave out bfloat16 roundings, so the test turns that option off."""
  decoder = made(style, **changes)
  options = {"xla_allow_excess_precision": False}
  changed = attenuate(decoder, np.ones((3, 2)))
  assert untouched(changed, text(32), options) == untouched(decoder, text(32), options)


def layer_norm(x, p):
  z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
  return z * p["scale"] + p["bias"]


def linear(x, p):
  return x @ p["kernel"] + p["bias"]


def gpt2_loss(params, batch, factors):
  """Returns the nats of a GPT-2 in float64 NumPy whose stream is multiplied by factors."""
  p = jax.tree.map(np.float64, params)
  inputs, segments = batch["inputs"], batch["segment_ids"]
  x = p["embed"]["embedding"][inputs] + p["embed"]["positions"][batch["positions"]]
  for layer, (at_attention, at_mlp) in enumerate(factors):
    row = jax.tree.map(lambda leaf, i=layer: leaf[i], p["layers"])
    n, a, m = row["norms"], row["attention"], row["mlp"]
    h = layer_norm(x, n["attention"]["x"])
    q, k, v = (linear(h, a[f"{name}_proj"]) for name in "qkv")
    q, k, v = (y.reshape(*y.shape[:2], -1, 4) for y in (q, k, v))  # head_dim 4
    out = reference.causal_attention(q, k, v, segments).reshape(h.shape)
    x = at_attention * x + linear(out, a["o_proj"])
    hidden = linear(layer_norm(x, n["mlp"]["x"]), m["up_proj"])
    hidden = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
    x = at_mlp * x + linear(hidden, m["down_proj"])
  logits = layer_norm(x, p["final_norm"]) @ p["embed"]["embedding"].T
  log_normaliser = np.log(np.sum(np.exp(logits), axis=-1))
  right = np.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
  return np.sum((log_normaliser - right) * (segments != 0))


@pytest.mark.parametrize(
  "sites", [("mlp",), pytest.param(("attention", "mlp"), marks=pytest.mark.release)]
)
def test_every_layer_and_alpha_in_numpy(sites):
  decoder, words = made("gpt2"), text()
  found = losses(decoder, words, alphas=ALPHAS, sites=sites)
  assert (found.layers, found.sites, found.alphas) == ((0, 1, 2), sites, ALPHAS)
  assert (found.model, found.corpus, found.num_tokens) == ("it", "words", 50)
  assert found.num_rows == 4
  params = nnx.to_pure_dict(nnx.state(decoder))
  want = np.empty((3, 3))
  for layer, alpha in np.ndindex(want.shape):
    factors = np.ones((3, 2))
    factors[layer, [site in sites for site in ("attention", "mlp")]] = ALPHAS[alpha]
    nats = sum(gpt2_loss(params, batch, factors) for batch in words.batches)
    want[layer, alpha] = nats / found.num_tokens
  np.testing.assert_allclose(found.loss, want, rtol=2e-6)  # float32 sums of hundreds of terms.
  assert len(np.unique(np.round(want, 3))) == 7  # Two alphas at three layers, and no cut.


@pytest.mark.slow
def test_a_cut_is_the_combinator_of_the_paper_bit_for_bit():
  decoder, words = made("llama", dtype="bfloat16"), text()
  found = losses(decoder, words, alphas=(0.25,), sites=("attention",))
  cut = nnx.merge(*nnx.split(decoder))
  cut.combinator = Attenuation(
    num_layers=3, d_model=16, layers=1, alpha=0.25, cut_sites=("attention",)
  )
  assert found.loss[1, 0] == untouched(cut, words)


def test_one_program_serves_all_layers_and_alphas(caplog):
  decoder, words, told = made("llama"), text(100, 2), []
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    found = sensitivity(
      decoder, words, model="it", alphas=ALPHAS, progress=lambda *now: told.append(now)
    )
  assert found.loss.shape == (3, 3) and len(words.batches) == 4
  assert [len(row) for row in found.alignments] == [3, 3, 3]
  programs = [r.getMessage() for r in caplog.records]
  counts = [sum(f"Compiling jit({name})" in p for p in programs) for name in ("nats", "probe_step")]
  assert counts == [2, 1]  # The loss has one for cuts and one without; alignment has one.
  assert told == [(done, 9) for done in range(1, 10)]


@pytest.mark.slow
def test_alignment_is_that_of_the_combinator_of_the_paper():
  decoder, words = made("llama"), text(100)
  found = sensitivity(decoder, words, model="it", alphas=(0.25, 1.0), layers=(1,))
  cut = nnx.merge(*nnx.split(decoder))
  cut.combinator = Attenuation(num_layers=3, d_model=16, layers=1, alpha=0.25)
  options = {"batch_size": 2, "model": "it", "corpus": "words"}
  ((got, same),) = found.alignments
  assert same is found.baseline_alignment and got.model == "it, alpha 0.25 at layer 1"
  for alignment, model in ((got, cut), (same, decoder)):
    want = measure(model, words.batches, **options)
    assert alignment.positions == want.positions
    group, expected = alignment.readings["closed"]["all"], want.readings["closed"]["all"]
    assert group.shifts == expected.shifts
    for name, values in expected.metrics.items():
      np.testing.assert_allclose(group.metrics[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
  read_again = Sensitivity.from_json(found.to_json())
  assert read_again.to_json() == found.to_json()
  assert read_again.alignments[0][0].positions == got.positions


@pytest.mark.slow
def test_eight_devices_give_the_same():
  config = decoders.config(**(SIZES | {"vocab_size": 264}))
  alone, words = decoders.decoder(config), text(100, batch_size=8)
  split = decoders.decoder(config, layout=layouts.layout(data=2, fsdp=2, tensor=2))
  found = [losses(d, words, alphas=(0.5,)) for d in (alone, split)]
  np.testing.assert_allclose(found[1].loss, found[0].loss, rtol=1e-5)
  for name in ("errors", "slopes", "slope_errors"):  # of rows, which devices share
    got, want = (getattr(one, name) for one in found[::-1])
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6, err_msg=name)


def test_json_is_the_same_again():
  fields = {"model": "a", "corpus": "b", "num_tokens": 3, "num_rows": 2, "residual": "gate"}
  fields |= {"layers": (0, 4)}
  fields |= {"sites": ("mlp",), "alphas": (0.0, 1 / 3), "baseline_loss": 0.1}
  fields["prefix"] = "a: nothing in front of texts, as its tokenizer's rules say"
  arrays = {
    "loss": np.array([[1 / 3, np.nan], [2.0, 1e-300]]),
    "errors": np.array([[0.1, np.nan], [0.0, 1 / 7]]),
    "slopes": np.array([[-0.1], [1 / 9]]),
    "slope_errors": np.full((2, 1), np.nan),
  }
  want = Sensitivity(**fields, **arrays)
  got = Sensitivity.from_json(want.to_json())
  for name in arrays:
    np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
  others = dict.fromkeys(arrays, 0)
  assert dataclasses.asdict(got) | others == dataclasses.asdict(want) | others


@pytest.mark.parametrize(
  ("chosen", "words"),
  [
    ({"layers": (3,)}, "--layers=3 is out of range; the model has 3 layers: -3..2"),
    ({"sites": ("mlps",)}, "--sites=mlps is no site of the model; it has attention, mlp"),
    ({"alphas": ()}, "--alphas is empty"),
    ({"alphas": (-0.5,)}, "--alphas=-0.5 is out of range"),
    ({"alphas": (float("nan"),)}, "--alphas=nan is out of range"),
  ],
)
def test_what_is_not_there(chosen, words):
  decoder = decoders.shapes(decoders.config(**SIZES))
  with pytest.raises(ValueError, match=words) as error:
    losses(decoder, text(), **({"alphas": ALPHAS} | chosen))
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"loss": [[1.0]]}, "loss must have 2 rows of 1 numbers"),
    ({"slopes": [[1.0]]}, "slopes must have 2 rows of 1 numbers"),
    ({"layers": []}, "layers: expected array of length >= 1"),
    ({"layers": [0, -1]}, r"layers\[1\] is -1"),
    ({"alignments": [[]]}, "alignments must have 0 rows of 0"),
    ({"model": None}, "model is None"),
    ({"baseline_alignment": 3}, "baseline_alignment is 3"),
  ],
)
def test_other_json_is_named_in_one_line(changes, words):
  fields = {"model": "a", "corpus": "b", "num_tokens": 3, "num_rows": 2, "residual": "gate"}
  fields |= {"layers": [0, 4]}
  fields |= {"sites": ["mlp"], "alphas": [0.5], "baseline_loss": None, "loss": [[1.0], [None]]}
  fields |= {"errors": [[0.1], [None]], "slopes": [[0.1], [0.2]], "slope_errors": [[0.1], [0.0]]}
  fields |= {"baseline_alignment": None, "alignments": []}
  assert np.isnan(Sensitivity.from_json(json.dumps(fields)).baseline_loss)
  with pytest.raises(ValueError, match=f"^a.json: {words}"):
    Sensitivity.from_json(json.dumps(fields | changes), "a.json")


def test_errors_are_those_of_paired_rows():
  decoder = made("llama")
  found = losses(decoder, text(64, 4), alphas=(0.5,), layers=(1,))
  rows = [losses(decoder, of_row(text(64, 4), n), alphas=(0.5,), layers=(1,)) for n in range(4)]
  above = np.array([row.loss[0, 0] - row.baseline_loss for row in rows])
  np.testing.assert_allclose(found.loss[0, 0] - found.baseline_loss, above.mean(), rtol=1e-5)
  np.testing.assert_allclose(found.errors[0, 0], above.std(ddof=1) / 2, rtol=1e-5)


def of_row(words, row):
  """The text with one row of its only batch, of 16 tokens."""
  (batch,) = words.batches
  alone = {name: array[row : row + 1] for name, array in batch.items()}
  return dataclasses.replace(words, batches=(alone,), num_tokens=16)
