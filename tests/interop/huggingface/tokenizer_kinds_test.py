"""Ids and what stands around them equal those of transformers, for a tokenizer of each kind.

Run where transformers is installed; elsewhere this is skipped.
"""

import json

import pytest

from resjax.data.pretrained_tokenizer import load_pretrained
from tests.helpers import tokenizer_kinds

transformers = pytest.importorskip("transformers", minversion="5.23")

ODD = {  # settings that a rule of transformers depends on
  "no flags are heeded": ("llama2", {"add_bos_token": False, "add_eos_token": True}),
  "nor these": ("bpe", {"add_bos_token": True}),
  "without a class": ("llama3", {"tokenizer_class": None}),
  "a class of other parts": ("llama3", {"tokenizer_class": "LlamaTokenizerFast"}),
  "a class without a template": ("pythia", {"tokenizer_class": "GPTNeoXTokenizerFast"}),
  "a template without its class": ("pythia", {"tokenizer_class": "PreTrainedTokenizerFast"}),
}


def check(folder):
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  ours = load_pretrained(folder)
  for text in (tokenizer_kinds.TEXT, "the", "end the"):
    ids = tuple(ours.encode_batch([text])[0])
    whole = (*ours.around.before, *ids, *ours.around.after)
    assert whole == tuple(theirs(text)["input_ids"])
    assert ids == tuple(theirs(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("name", tokenizer_kinds.KINDS)
def test_kinds(tmp_path, name):
  check(tokenizer_kinds.folder(tmp_path, name))


@pytest.mark.parametrize("case", ODD)
def test_settings(tmp_path, case):
  name, changes = ODD[case]
  folder = tokenizer_kinds.folder(tmp_path, name)
  place = folder / "tokenizer_config.json"
  settings = json.loads(place.read_text()) | changes
  place.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
  check(folder)
