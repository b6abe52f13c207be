"""The files of tokenizers in folders."""

import json

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from resjax.data.pretrained_tokenizer import MAIN, PretrainedTokenizer
from resjax.data.tokenizer import END_OF_TEXT, ByteTokenizer, Tokenizer


def special_ids(words: Tokenizer | None) -> dict[str, object]:
  """Returns the special tokens of config.json."""
  names = "bos_token_id", "eos_token_id", "pad_token_id"
  if isinstance(words, PretrainedTokenizer):
    return dict.fromkeys(names) | words.ids
  end = None if words is None else words.eot_id
  return dict(zip(names, (end, end, None), strict=True))


def tokenizer_files(words: Tokenizer | None) -> dict[str, str]:
  """Returns the files of a tokenizer by name; those of a pretrained one as they were."""
  if words is None:
    return {}
  if isinstance(words, PretrainedTokenizer):
    return words.files
  model = _bytes_as_bpe() if isinstance(words, ByteTokenizer) else words.model
  settings = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": END_OF_TEXT,
    "eos_token": END_OF_TEXT,
    "clean_up_tokenization_spaces": False,
  }
  return {MAIN: model.to_str(), "tokenizer_config.json": json.dumps(settings, indent=2) + "\n"}


def _bytes_as_bpe() -> tokenizers.Tokenizer:
  """Returns a byte-level BPE without merges, whose token b is byte b."""
  # GPT-2's spelling of bytes: those that print stand for themselves, the others follow from 256 on.
  own = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = [byte for byte in range(256) if byte not in own]
  vocabulary = {chr(byte if byte in own else 256 + others.index(byte)): byte for byte in range(256)}
  model = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
  model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  model.decoder = decoders.ByteLevel()
  model.add_special_tokens([END_OF_TEXT])
  return model
