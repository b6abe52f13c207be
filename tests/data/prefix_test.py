"""What stands in front of texts is what the tokenizer says, wherever a model is given texts."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from resjax.data import prefix
from resjax.data.documents import with_documents
from resjax.data.eval_text import measured_text
from resjax.data.pretrained_tokenizer import PretrainedTokenizer, load_pretrained
from resjax.data.special_tokens import Around
from resjax.data.tokenizer import ByteTokenizer
from resjax.study.evaluation.conventions import DOCUMENTS, LAST_WORD
from resjax.study.evaluation.corpora import Text
from resjax.study.evaluation.units import Cut, units
from resjax.study.trained_model import TrainedModel
from resjax.train.runs import sample
from tests.helpers import decoders, tokenizer_kinds
from tests.helpers.tokenizer_kinds import TEXT


@pytest.fixture(params=tokenizer_kinds.KINDS)
def kind(request, tmp_path):
  folder = tokenizer_kinds.folder(tmp_path, request.param)
  return tokenizer_kinds.KINDS[request.param], load_pretrained(folder)


def prompts(monkeypatch, model, texts):
  """Returns the tokens that `sample_text` gives a model for each text."""
  seen = []

  def end(decoder, rows, num_tokens, *, lengths, **options):
    seen.extend(row[len(row) - n :].tolist() for row, n in zip(rows, lengths, strict=True))
    return jnp.concatenate([rows, jnp.full((len(rows), 1), model.tokenizer.end_ids[-1])], axis=1)

  monkeypatch.setattr(sample, "generate", end)
  monkeypatch.setattr(sample.jax, "jit", lambda function, **options: function)
  options = {"num_tokens": 1, "temperature": 0.0, "seed": 0}
  assert sample.sample_text(model, texts, **options) == [""] * len(texts)
  return seen


def test_prompts(monkeypatch, kind):
  want, words = kind
  filled, empty = prompts(monkeypatch, trained(words, pretrained=True), [TEXT, ""])
  assert tuple(filled) == want.before + want.ids
  assert tuple(empty) == (want.before or (prefix.start_token(words),))


def test_rows_that_are_analyzed(kind):
  want, words = kind
  around = prefix.by_rule(words)
  sizes = {"seq_len": 32, "batch_size": 1, "max_tokens": 99}
  (batch,) = measured_text("mine", [TEXT, TEXT], words, around=around, **sizes).batches
  whole = want.before + want.ids + (want.after or want.before)
  for segment in (1, 2):
    mine = batch["segment_ids"][0] == segment
    assert tuple(batch["inputs"][0][mine]) == whole[:-1]
    assert tuple(batch["targets"][0][mine]) == whole[1:]


def test_contexts_that_are_scored(kind):
  want, words = kind
  text = f"{TEXT} the"
  cut = Cut(64, 64, prefix.before_contexts(words))
  corpus = SimpleNamespace(rule=SimpleNamespace(kind=LAST_WORD))
  (unit,) = units(corpus, [Text("0", text, text)], words, cut)
  row = unit.rows[0]
  whole = words.encode_batch([text])[0]
  np.testing.assert_array_equal(row.tokens, [*want.before, *whole])
  assert tuple(row.tokens[: row.first]) == (want.before + want.ids)[: row.first]


@pytest.mark.parametrize(
  ("name", "always"),
  [("qwen", (260,)), ("smollm", (1,)), ("pythia", (0,)), ("llama2", (1,)), ("wordpiece", (2,))],
)
def test_rules(tmp_path, name, always):
  words = load_pretrained(tokenizer_kinds.folder(tmp_path, name))
  kind = tokenizer_kinds.KINDS[name]
  assert prefix.by_rule(words) == Around(kind.before, kind.after)
  assert prefix.by_rule(words, "always") == Around(always, kind.after)
  assert prefix.by_rule(words, "never") == Around((), kind.after)
  with pytest.raises(ValueError, match="bos='maybe' is unknown; allowed: auto, always, never"):
    prefix.by_rule(words, "maybe")


def test_models_that_were_trained_here():
  words = ByteTokenizer()
  assert prefix.by_rule(words) == prefix.by_rule(words, "always") == Around((256,))
  assert prefix.by_rule(words, "never") == Around()
  found = [prefix.before_contexts(words, rule) for rule in prefix.RULES]
  assert found == [(), (256,), ()]


def test_models_that_were_tuned_here(monkeypatch, tmp_path):
  words = load_pretrained(tokenizer_kinds.folder(tmp_path, "smollm"))
  separated = Around((2,))
  tuned = PretrainedTokenizer(
    words.files, words.vocab_size, words.ids, words.generation, separated, "text"
  )
  model = trained(tuned)
  assert model.prefix == (2,)
  assert model.prefix_in_words == "it: <|im_end|> (2) in front of texts, as in training"
  assert model.prompt("the").tolist() == [2, *tuned.encode_batch(["the"])[0]]
  assert prompts(monkeypatch, model, ["the"])[0][0] == 2


def test_texts_are_scored_behind_what_stood_before_documents(tmp_path):
  def scored(kind, front):
    corpus = SimpleNamespace(rule=SimpleNamespace(kind=kind))
    cut = Cut(64, 64, prefix.before_contexts(words))
    (unit,) = units(corpus, [Text("0", "the end", "the end")], words, cut)
    assert tuple(unit.rows[0].tokens[: len(front)]) == front
    assert len(unit.rows[0].tokens) == len(front) + len(words.encode_batch(["the end"])[0])

  llama = load_pretrained(tokenizer_kinds.folder(tmp_path, "llama2"))
  for rule, token in {"eos": 2, "bos": 1, "bos_eos": 1}.items():
    words = with_documents(llama, rule, "text")
    assert prefix.start_token(words) == token
    scored(DOCUMENTS, (token,))
    scored(LAST_WORD, (token,))
  words = with_documents(load_pretrained(tokenizer_kinds.folder(tmp_path, "qwen")), "auto", "text")
  assert words.documents.before == (prefix.start_token(words),) == (260,)
  scored(DOCUMENTS, (260,))
  scored(LAST_WORD, ())  # its own rules put nothing in front of contexts


def trained(words, *, pretrained=False):
  decoder = decoders.shapes(decoders.config(vocab_size=words.vocab_size))
  return TrainedModel("it", decoder, words, 8, pretrained=pretrained)


def test_what_is_told_of_prompts(tmp_path):
  words = load_pretrained(tokenizer_kinds.folder(tmp_path, "smollm"))
  model = trained(words, pretrained=True)
  nothing = "it: nothing in front of texts, as its tokenizer's rules say"
  assert sample.prefix_of_prompts(model, ["a"]) == nothing
  assert (
    sample.prefix_of_prompts(model, ["a", ""])
    == f"{nothing}; <|im_start|> (1) in place of an empty one"
  )
  assert sample.prefix_of_prompts(trained(ByteTokenizer()), [""]).endswith("as in training")


def test_in_words(tmp_path):
  llama = load_pretrained(tokenizer_kinds.folder(tmp_path, "llama2"))
  ours = trained(ByteTokenizer())
  theirs = trained(llama, pretrained=True)
  rules = "<s> (1) in front of texts, as its tokenizer's rules say"
  training = "<|endoftext|> (256) in front of texts, as in training"
  never = "nothing in front of texts, as --bos says"
  for model, by_itself in ((ours, training), (theirs, rules)):
    for rule, words in {"auto": by_itself, "always": by_itself, "never": never}.items():
      assert dataclasses.replace(model, bos=rule).prefix_in_words == f"it: {words}"
