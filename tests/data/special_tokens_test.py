"""The tokens around a text are those of the tokenizer's own rules."""

import json
import re

import pytest
from tokenizers import models, processors

from resjax.data.pretrained_tokenizer import PretrainedTokenizer, load_pretrained
from resjax.data.special_tokens import Around, around
from resjax.data.warn_once import warn_once
from tests.helpers import tokenizer_kinds

CLS, SEP = ("[CLS]", 2), ("[SEP]", 3)


@pytest.mark.parametrize("name", tokenizer_kinds.KINDS)
def test_kinds(tmp_path, name):
  kind = tokenizer_kinds.KINDS[name]
  made = load_pretrained(tokenizer_kinds.folder(tmp_path, name))
  assert made.around == Around(kind.before, kind.after)
  assert tuple(made.encode_batch([tokenizer_kinds.TEXT])[0]) == kind.ids


@pytest.mark.parametrize(
  ("processor", "found"),
  [
    (processors.BertProcessing(SEP, CLS), Around((2,), (3,))),
    (processors.RobertaProcessing(SEP, CLS), Around((2,), (3,))),
    (processors.TemplateProcessing(single="$A", special_tokens=[]), Around()),
    (
      processors.TemplateProcessing(single="[CLS] [SEP] $A [SEP]", special_tokens=[CLS, SEP]),
      Around((2, 3), (3,)),
    ),
  ],
)
def test_post_processors(processor, found):
  model = tokenizer_kinds.KINDS["wordpiece"].model()
  model.post_processor = processor
  assert around(model, {}) == found


def test_flags_do_not_outvote_the_post_processor(caplog):
  model = tokenizer_kinds.KINDS["llama2"].model()
  warn_once.cache_clear()
  for flags in ({"add_bos_token": False}, {"add_eos_token": True}, {"add_bos_token": True}):
    assert around(model, {"tokenizer_config.json": json.dumps(flags)}) == Around((1,))
  end = "it decides, as in transformers"
  parts = "tokenizer_config.json says add_bos_token=false", "json puts a token there", end
  assert all(part in caplog.messages[0] for part in parts)
  assert "add_eos_token=true" in caplog.messages[1] and len(caplog.messages) == 2


def test_vocabularies_without_a_letter():
  model = tokenizer_kinds.KINDS["wordpiece"].model()
  model.model = models.WordLevel({"[CLS]": 2, "[SEP]": 3, "one": 4}, unk_token="none")
  model.add_tokens(["two"])
  assert around(model, {}) == Around((2,), (3,))


def test_a_token_that_has_no_row():
  model = tokenizer_kinds.KINDS["llama3"].model()
  model.post_processor = processors.TemplateProcessing(
    single="<far> $A", special_tokens=[("<far>", 400)]
  )
  message = "tokenizer.json puts token 400 around texts; the embedding has 300 rows"
  with pytest.raises(ValueError, match=re.escape(message)):
    PretrainedTokenizer({"tokenizer.json": model.to_str()}, 300, {"bos_token_id": 0})
