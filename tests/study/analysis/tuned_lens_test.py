"""A tuned lens is never worse than the logit lens on held-out text, and belongs to one model."""

import hashlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from resjax.data.eval_text import MeasuredText
from resjax.study.analysis import tuned_lens
from resjax.study.analysis.states import states
from resjax.study.trained_model import TrainedModel
from tests.helpers import decoders
from tests.study.analysis import no_shift_test

SIZES = no_shift_test.SIZES | {"num_layers": 3, "init_std": 0.3}


def text(batches=3):
  found = tuple(no_shift_test.batch(seed) for seed in range(batches))
  return MeasuredText("words", sum(batch["inputs"].size for batch in found), found)


def model(name="standard"):
  return decoders.decoder(decoders.config("llama", name, **SIZES))


@pytest.fixture(scope="module")
def trained():
  return model(), *tuned_lens.train(model(), text(), steps=30, learning_rate=3e-3)


@pytest.mark.slow
def test_it_is_closer_to_the_final_prediction_and_never_further(trained):
  _, _, found = trained
  assert (found.gain >= 0).all() and (found.kl[1] <= found.kl[0]).all()
  # The gain is clear where there is much to gain, and the last state has none.
  assert found.gain[0] > 5 * found.gain_errors[0] > 0
  assert found.gain[-1] == found.kl[0, -1] == found.kl[1, -1] == 0
  np.testing.assert_allclose(found.kl[0] - found.kl[1], found.gain, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attn_res", "hyper_connections", "deep_delta"])
def test_any_combinator_has_one(name):
  _, found = tuned_lens.train(model(name), text(), steps=30, learning_rate=3e-3)
  assert (found.gain >= 0).all() and found.gain[0] > 0


@pytest.mark.slow
def test_the_gain_is_the_difference_where_the_last_read_normalises():
  _, found = tuned_lens.train(model("gated_residual"), text(), steps=1)
  np.testing.assert_allclose(found.gain, found.kl[0] - found.kl[1], atol=1e-5)


@pytest.mark.slow
def test_some_words_and_layers_give_about_the_same(trained):
  """With a third of the words the KL over all words is nearly that of the loss with all words."""
  decoder, lens, whole = trained
  options = {"steps": 30, "learning_rate": 3e-3, "layers": (-2, 0)}
  some, found = tuned_lens.train(decoder, text(), words=40, **options)
  every, full = tuned_lens.train(decoder, text(), **options)
  np.testing.assert_allclose(every.weights[1:3], lens.weights[1:3], atol=1e-5)
  np.testing.assert_allclose(full.kl, whole.kl[:, [1, 2]], rtol=1e-4)
  np.testing.assert_array_equal(found.kl[0], full.kl[0])
  assert (found.gain > 0.8 * full.gain).all() and (full.gain > 0).all()
  assert not np.any(some.weights[::3]) and np.any(some.weights[1])


@pytest.mark.parametrize("wrong", [{"layers": [3]}, {"words": 1}, {"words": 129}])
def test_layers_and_words_out_of_range_are_refused(wrong):
  with pytest.raises(ValueError, match="is out of range; allowed: "):
    tuned_lens.train(model(), text(1), **wrong)


def test_a_lens_that_learned_nothing_is_the_logit_lens():
  """Layers that write next to nothing leave nothing to learn: every step makes a map worse."""
  decoder = model()
  for kernel in (decoder.layers.attention.o_proj.kernel, decoder.layers.mlp.down_proj.kernel):
    kernel[...] = 1e-5 * kernel[...]
  lens, found = tuned_lens.train(decoder, text(), steps=5, learning_rate=1.0)
  assert not np.any(lens.weights) and not np.any(lens.biases)
  np.testing.assert_array_equal(found.kl[0], found.kl[1])


def test_the_figures_are_those_of_numpy(trained):
  """KL and loss of the held-out rows, the last 15% of all, from the raw states in float64."""
  decoder, lens, found = trained
  rows = np.concatenate([batch["inputs"] for batch in text().batches])
  rows = rows[round(0.85 * len(rows)) :]
  hidden = np.stack(list(states(decoder, rows).values())).astype(np.float64)
  weights, biases = np.float64(lens.weights), np.float64(lens.biases)
  tuned = hidden + np.einsum("pbtd,pde->pbte", hidden, weights) + biases[:, None, None]
  np.testing.assert_allclose(lens(hidden.astype(np.float32)), tuned, rtol=1e-4, atol=1e-4)
  each = [log_softmax(decoder, h) for h in (hidden, tuned)]
  last = each[0][-1]
  for index, log_p in enumerate(each):
    kl = np.sum(np.exp(last) * (last - log_p), axis=-1)[..., :-1]
    np.testing.assert_allclose(found.kl[index], kl.mean(axis=(1, 2)), rtol=1e-3, atol=1e-5)
    own = np.take_along_axis(log_p[:, :, :-1], rows[None, :, 1:, None], axis=-1)
    np.testing.assert_allclose(found.nats[index], -own.mean(axis=(1, 2, 3)), rtol=1e-4)
    errors = kl.mean(axis=2).std(axis=1, ddof=1) / np.sqrt(len(rows))  # rows of one length
    np.testing.assert_allclose(found.kl_errors[index], errors, rtol=1e-3, atol=1e-6)
  assert found.num_tokens == rows[:, 1:].size


def log_softmax(decoder, h):
  """Log-probabilities of the final norm and the head, in float64."""
  scale = np.sqrt(np.mean(h * h, axis=-1, keepdims=True) + decoder.config.norm_eps)
  logits = h / scale * np.float64(decoder.final_norm.scale[...]) @ np.float64(decoder.head).T
  return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def fingerprint(decoder):
  words = SimpleNamespace(vocab_size=1)
  return TrainedModel("it", decoder, words, seq_len=8).fingerprint()


def test_a_lens_is_read_again_for_its_own_model_alone(trained, tmp_path):
  decoder, lens, _ = trained
  own, folder = fingerprint(decoder), tmp_path / "lens"
  tuned_lens.save(lens, folder, own)
  back = tuned_lens.load(folder, own)
  np.testing.assert_array_equal(back.weights, lens.weights)
  np.testing.assert_array_equal(back.biases, lens.biases)
  other = nnx.merge(*nnx.split(decoder))
  other.embed.embedding[...] = other.embed.embedding[...].at[3, 1].add(1e-6)
  with pytest.raises(ValueError, match="has a tuned lens for other parameters"):
    tuned_lens.load(folder, fingerprint(other))
  file = folder / "lens.safetensors"
  content = bytearray(file.read_bytes())
  content[-1] ^= 1
  file.write_bytes(content)
  with pytest.raises(ValueError, match=r"lens\.safetensors is damaged; train the lens again"):
    tuned_lens.load(folder, own)


@pytest.mark.parametrize(
  ("maps", "message"),
  [
    (None, "is no safetensors file"),
    ({"other": np.zeros(2)}, r"weights \[0\] and biases \[0\] must be"),
    ({"weights": np.zeros((2, 3, 4)), "biases": np.zeros((2, 3))}, r"weights \[2, 3, 4\]"),
  ],
)
def test_a_folder_of_somebody_else_may_hold_anything(tmp_path, maps, message):
  content = b"x" * 40 if maps is None else safetensors.numpy.save(maps)
  facts = {"model": "m", "digest": hashlib.sha256(content).hexdigest()}
  (tmp_path / "lens.json").write_text(json.dumps(facts))
  (tmp_path / "lens.safetensors").write_bytes(content)
  with pytest.raises(ValueError, match=message) as caught:
    tuned_lens.load(tmp_path, "m")
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"learning_rate": float("nan")}, {"steps": 0}])
def test_options_out_of_range_are_refused(wrong):
  with pytest.raises(ValueError, match="must be at least 1, and learning_rate="):
    tuned_lens.train(model(), text(1), **wrong)


def test_a_text_that_cannot_be_split_is_refused():
  rows = {name: array[:5] for name, array in no_shift_test.batch().items()}
  with pytest.raises(ValueError, match="words has 5 rows, and a tuned lens needs 12 or more"):
    tuned_lens.train(model(), MeasuredText("words", 320, (rows,)))
