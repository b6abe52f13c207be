"""Perplexities of a small model of bytes, against a float64 loop over single tokens."""

import dataclasses
import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
from flax import nnx

from resjax.data.tokenizer import ByteTokenizer
from resjax.interop import huggingface
from resjax.study.evaluation import corpora, record
from resjax.study.evaluation.texts import BINS, measure, perplexity, summarise
from resjax.study.evaluation.units import Cut, units
from resjax.study.trained_model import TrainedModel
from tests.helpers import decoders, pretrained

L, END = 32, 256
LENGTHS = (1, L - 1, L, L + 1, 3 * L + 5)


@pytest.fixture(scope="module")
def decoder():
  return decoders.decoder(decoders.config("llama", "standard", vocab_size=257, max_positions=64))


@pytest.fixture(scope="module")
def model(decoder):
  return TrainedModel("small", decoder, ByteTokenizer(), seq_len=L)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  place, draw = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
  letters = np.array(list("ab cde"))
  rows = ["x" + "".join(draw.choice(letters, length - 1)) for length in LENGTHS]
  lines = [json.dumps({"text": row}) + "\n" for row in rows]
  (place / "a.jsonl").write_text("".join(lines))
  (place / "b.jsonl").write_text("".join(lines[:3]))
  return place


@nnx.jit
def _logits(decoder, tokens):
  return decoder.logits(decoder(tokens[None]))[0]


def log_p(decoder, context, token):
  """Log p of a token and whether it is the best one; what stands behind a context has no part."""
  padded = np.zeros(L + 2, np.int32)
  padded[: len(context)] = context
  logits = np.asarray(_logits(decoder, padded)[len(context) - 1], np.float64)
  top = logits.max()
  return logits[token] - top - math.log(np.exp(logits - top).sum()), int(logits.argmax()) == token


def naive(decoder, text, stride):
  """Nats of the bytes of a text, each with the context that its window gives it."""
  stream = [END, *text.encode()]
  total = 0.0
  for place in range(1, len(stream)):
    if place <= L:
      start = 0
    else:
      number = -(-(place - L) // stride)
      start = min(number * stride, len(stream) - 1 - L)
    total -= log_p(decoder, stream[start:place], stream[place])[0]
  return total


@pytest.mark.parametrize("stride", [L, L // 2])
def test_documents_of_many_lengths(model, folder, stride):
  (corpus,) = corpora.parse([f"a={folder}/a.jsonl"])
  (found,) = measure(model, [corpus], stride=stride)
  texts = [text.original for text in corpus.texts()]
  nats = [naive(model.decoder, text, stride) for text in texts]
  np.testing.assert_allclose(found.table[:, 0], nats, rtol=1e-5)
  assert found.table[:, 1].tolist() == found.table[:, 2].tolist() == list(LENGTHS)
  report = summarise([found])
  figures = report.figures["small", "a"]
  total, words = sum(nats), sum(len(f"|{text}|".split()) for text in texts)
  assert found.sums("words") == words
  expected = {
    "bits_per_byte": total / sum(LENGTHS) / math.log(2),
    "byte_perplexity": math.exp(total / sum(LENGTHS)),
    "word_perplexity": math.exp(total / words),
    "token_perplexity": math.exp(total / sum(LENGTHS)),
    "nats_per_token": total / sum(LENGTHS),
  }
  assert list(figures) == list(expected)
  for name, value in expected.items():
    assert figures[name].value == pytest.approx(value, rel=1e-4)
    assert figures[name].stderr > 0


def test_loss_by_position_adds_up(model, folder):
  (found,) = measure(model, corpora.parse([f"a={folder}/a.jsonl"]))
  assert found.by_position.shape == (2, BINS)
  assert found.by_position[0].sum() == pytest.approx(found.sums("nats"))
  assert found.by_position[1].sum() == found.sums("tokens")
  # Positions 0 and 1 of windows; the last ones of the long documents score later positions alone.
  assert found.by_position[1, 0] == 1 + 2 + 2 + 2 + 3 * 2
  assert all(value is None or value > 0 for value in found.loss_by_position())


def test_last_words(model, tmp_path):
  rows = ["he said yes", "one", "a  b", "x" * 40 + " end"]
  (tmp_path / "l.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
  (corpus,) = corpora.parse([f"lambada_openai={tmp_path}/l.jsonl"])
  for bos in (False, True):
    rule = "always" if bos else "auto"
    (found,) = measure(dataclasses.replace(model, bos=rule), [corpus])
    nats, right = [], []
    for row in rows:
      context, _, word = row.rpartition(" ")
      start = [END] if bos or not context else []
      tokens = (
        [*start, *context.rstrip().encode()],
        list((context[len(context.rstrip()) :] + " " + word).encode()),
      )
      whole = (tokens[0] + tokens[1])[-(L + 1) :]
      places = range(len(whole) - len(tokens[1]), len(whole))
      scores = [log_p(model.decoder, whole[:place], whole[place]) for place in places]
      nats.append(-sum(score for score, _ in scores))
      right.append(all(greedy for _, greedy in scores))
    np.testing.assert_allclose(found.table[:, 0], nats, rtol=1e-5)
    figures = summarise([found]).figures["small", "lambada_openai"]
    assert figures["perplexity"].value == pytest.approx(math.exp(np.mean(nats)), rel=1e-5)
    assert figures["acc"].value == np.mean(right)


@pytest.mark.parametrize("convention", ["nanogpt", "llmc"])
def test_files_of_tokens(model, tmp_path, convention):
  documents = ["first document", "the second one", "and a third, longer one " * 4]
  tokens = []
  for text in documents:
    tokens += [*text.encode(), END] if convention == "nanogpt" else [END, *text.encode()]
  header = np.array([20240520, 1, len(tokens)] + [0] * 253, np.int32).tobytes()
  content = np.array(tokens, np.uint16).tobytes()
  path = tmp_path / "val.bin"
  path.write_bytes(content if convention == "nanogpt" else header + content)
  (found,) = measure(model, corpora.parse([f"v={convention}:{path}"]))
  nats = 0.0
  for place in range(1, len(tokens)):
    start = (place - 1) // L * L
    nats -= log_p(model.decoder, tokens[start:place], tokens[place])[0]
  assert found.sums("nats") == pytest.approx(nats, rel=1e-5)
  assert found.sums("tokens") == len(tokens) - 1
  assert found.sums("bytes") == sum(token != END for token in tokens[1:])
  assert "word_perplexity" not in found.metrics
  (shorter,) = measure(model, corpora.parse([f"v={convention}:{path}"]), stride=L // 2)
  assert shorter.digest == found.digest and shorter.sums("tokens") == found.sums("tokens")
  path.write_bytes(
    content.replace(b"\x00\x01", b"\x01\x00")
    if convention == "nanogpt"
    else header + content[2:] + b"aa"
  )
  with pytest.raises(ValueError, match="with the tokenizer that wrote the file"):
    list(measure(model, corpora.parse([f"v={convention}:{path}"])))


def test_wikitext_as_one_stream(model, tmp_path):
  (tmp_path / "wiki.test.raw").write_text(" \n = T = \n \n some text of a page here . \n")
  (found,) = measure(model, corpora.parse([f"wikitext_guide={tmp_path}/wiki.test.raw"]), stride=8)
  stream = list("\n\n".join(["", " = T = \n", "", " some text of a page here . \n"]).encode())
  nats = -log_p(model.decoder, stream[:1], stream[1])[0]
  for place in range(2, len(stream)):
    start = max(0, -(-(place + 1 - L) // 8) * 8)
    nats -= log_p(model.decoder, stream[start:place], stream[place])[0]
  assert found.sums("nats") == pytest.approx(nats, rel=1e-5)
  assert found.sums("tokens") == len(stream) - 1


def test_models_are_compared_document_by_document(model, folder, tmp_path):
  other = decoders.drawn(model.decoder.config)
  models = [model, TrainedModel("other", other, model.tokenizer, L)]
  found = corpora.parse([f"a={folder}/a.jsonl", f"b={folder}/b.jsonl"])
  report = perplexity(models, found, batch_size=3)
  assert set(report.differences) == {("other", text) for text in ("a", "b", corpora.MACRO)}
  for text in ("a", "b", corpora.MACRO):
    one, two = (report.figures[name, text]["bits_per_byte"] for name in ("small", "other"))
    difference = report.differences["other", text]["bits_per_byte"]
    assert difference.value == pytest.approx(two.value - one.value)
    assert 0 < difference.stderr < 3 * (one.stderr + two.stderr)
  macro = report.figures["small", corpora.MACRO]["bits_per_byte"].value
  parts = [report.figures["small", text]["bits_per_byte"].value for text in ("a", "b")]
  assert macro == pytest.approx(np.mean(parts))
  described = [record.describe(one) for one in models]
  written = json.loads(record.to_json(report, described, {"flags": {}}))
  assert [one["text"] for one in written["texts"]] == ["a", "b", "a", "b"]
  assert described[0]["tokenizer_sha256"] == described[1]["tokenizer_sha256"]
  record.write_samples(report.measured, tmp_path / "samples.parquet")
  samples = pq.read_table(tmp_path / "samples.parquet").to_pylist()
  assert len(samples) == 2 * (len(LENGTHS) + 3)
  total = sum(
    one["log_likelihood"] for one in samples if (one["model"], one["text"]) == ("small", "a")
  )
  assert total == pytest.approx(-written["texts"][0]["nats"])


def test_limit_and_mistakes(model, folder):
  found = corpora.parse([f"a={folder}/a.jsonl"])
  (two,) = measure(model, found, limit=2)
  assert list(two.ids) == ["a.jsonl:1", "a.jsonl:2"]
  for stride in (0, L + 1):
    with pytest.raises(ValueError, match=rf"--stride={stride} must be in 1..{L}"):
      list(measure(model, found, stride=stride))


def test_figures_that_are_not_finite_are_null(model, tmp_path):
  (tmp_path / "long.txt").write_text("q" * 4000)
  (found,) = measure(model, corpora.parse([f"a={tmp_path}/long.txt"]))
  text = record.to_json(summarise([found]), [record.describe(model)], {})
  assert json.loads(text)["texts"][0]["metrics"]["word_perplexity"]["value"] is None
  assert "Infinity" not in text and "NaN" not in text


def test_documents_that_a_tokenizer_cannot_spell_are_counted(tmp_path):
  tokenizer = huggingface.tokenizer(pretrained.folder(tmp_path))  # knows a to z alone
  rows = ["depth width", "depth 123", "4"]
  (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
  (corpus,) = corpora.parse([f"a={tmp_path}/a.jsonl"])
  found = list(units(corpus, corpus.texts(), tokenizer, Cut(L, L)))
  assert [unit.lossy for unit in found] == [False, True, True]
