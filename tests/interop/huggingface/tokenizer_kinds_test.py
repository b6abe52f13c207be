"""Ids and what stands around them equal those of transformers, for a tokenizer of each kind.

Run where transformers is installed; elsewhere this is skipped.
"""

import json

import pytest

import resjax
from resjax.data.pretrained_tokenizer import load_pretrained
from resjax.interop import huggingface
from tests.helpers import decoders, tokenizer_kinds

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


@pytest.mark.parametrize("name", ["bpe", "smollm", "qwen", "llama3", "llama2", "gemma"])
def test_greedy_text(tmp_path, name):
  words = load_pretrained(tokenizer_kinds.folder(tmp_path, name))
  decoder = decoders.drawn(decoders.config(vocab_size=words.vocab_size))
  out = tmp_path / "out"
  huggingface.export(decoder, out, tokenizer=words)
  given = transformers.AutoTokenizer.from_pretrained(out)
  prompt = given("the end", return_tensors="pt")
  model = transformers.AutoModelForCausalLM.from_pretrained(out)
  (whole,) = model.generate(**prompt, max_new_tokens=6, do_sample=False).tolist()
  ended = whole[-1] in words.end_ids
  text = given.decode(whole[len(words.around.before) : len(whole) - ended])
  [ours] = resjax.Pretrained(out).generate("the end", num_tokens=6, temperature=0)
  assert "the end" + ours == text
