"""The tokenizer files of a Hugging Face folder."""

import json

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from resjax.data import END_OF_TEXT, MAIN, BpeTokenizer, PretrainedTokenizer, Tokenizer


def special_ids(tokenizer: Tokenizer | None) -> dict[str, object]:
  """Returns the special tokens that config.json names."""
  names = "bos_token_id", "eos_token_id", "pad_token_id"
  if isinstance(tokenizer, PretrainedTokenizer):
    return dict.fromkeys(names) | tokenizer.ids
  end = None if tokenizer is None else tokenizer.eot_id
  return dict(zip(names, (end, end, None), strict=True))


def generation_settings(tokenizer: Tokenizer | None) -> dict[str, object]:
  """Returns generation_config.json: that of a pretrained model, with all tokens that end texts."""
  given = tokenizer.generation if isinstance(tokenizer, PretrainedTokenizer) else {}
  known = {name: ids for name, ids in special_ids(tokenizer).items() if ids is not None}
  return known | given | {name: ids for name, ids in known.items() if name == "eos_token_id"}


def tokenizer_files(tokenizer: Tokenizer | None) -> dict[str, str]:
  """Returns the files of a tokenizer by name; files of a pretrained one are unchanged."""
  if tokenizer is None:
    return {}
  if isinstance(tokenizer, PretrainedTokenizer):
    return tokenizer.files
  model = tokenizer.model if isinstance(tokenizer, BpeTokenizer) else _bytes_as_bpe()
  settings = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": END_OF_TEXT,
    "eos_token": END_OF_TEXT,
    "clean_up_tokenization_spaces": False,
  }
  return {MAIN: model.to_str(), "tokenizer_config.json": json.dumps(settings, indent=2) + "\n"}


def _bytes_as_bpe() -> tokenizers.Tokenizer:
  """Returns a byte-level BPE without merges, whose token b is byte b."""
  # GPT-2 spells printable bytes as themselves, and the others as the characters from 256 on.
  own = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = [byte for byte in range(256) if byte not in own]
  vocabulary = {chr(byte if byte in own else 256 + others.index(byte)): byte for byte in range(256)}
  model = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
  model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  model.decoder = decoders.ByteLevel()
  model.add_special_tokens([END_OF_TEXT])
  return model
