"""The tokenizer of a GGUF file, as the files tokenizer.json and tokenizer_config.json."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from resjax.base import typed_json
from resjax.data.gguf.settings import ENDS
from resjax.data.warn_once import warn_once

_NORMAL, _CONTROL, _USER = 1, 3, 4  # types of tokens; others are unknown, unused, or bytes
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_LLAMA3, _QWEN2 = _WORDS + r"\p{N}{1,3}" + _REST, _WORDS + r"\p{N}" + _REST
_GPT2, _DIGITS = "gpt2", "digits"  # words of GPT-2, and the same with digits of their own
_BEGIN = ("llama-bpe", "llama3", "llama-v3", "falcon3")  # whose texts begin with a token
_WHOLE_WORDS = (*_BEGIN, "smaug-bpe")  # in which a word that is a token is not cut
# How texts are cut into words before merges, by what files call it.
_CUTS = {
  **dict.fromkeys(("gpt-2", "default", "olmo", "mpt", "phi-2", "jais"), _GPT2),
  **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
  **dict.fromkeys((*_WHOLE_WORDS, "dbrx"), _LLAMA3),
  **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), _QWEN2),
}
_NAMED = {
  "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding",
}  # fmt: skip
_PREFIX = "tokenizer.ggml."


class _Keys(TypedDict, total=False):
  """The types of the keys that are read, but for numbers of tokens."""

  model: str
  pre: str
  tokens: list[str]
  token_type: list[int]
  scores: list[float]
  merges: list[str]


def files(place: object, metadata: Mapping[str, Any]) -> dict[str, str]:
  """Returns the files of the tokenizer by name.

  Args:
    place: the GGUF file, for messages.
    metadata: its metadata by name.

  Raises:
    ValueError: the file has no tokenizer, or one of a kind that is not read.
  """
  found = {k.removeprefix(_PREFIX): v for k, v in metadata.items() if k.startswith(_PREFIX)}
  typed_json.convert(found, _Keys, f"{place}, {_PREFIX}*")
  kind, tokens = found.get("model"), found.get("tokens")
  if not tokens:
    raise ValueError(f"{place} has no {_PREFIX}tokens; give a file with a tokenizer")
  kinds = found.get("token_type") or [_NORMAL] * len(tokens)
  if len(kinds) != len(tokens):
    raise ValueError(
      f"{place}: {_PREFIX}token_type has {len(kinds)} types for {len(tokens)} tokens"
    )
  named = {name: _named(place, found, f"{key}_token_id") for name, key in _NAMED.items()}
  if kind == "gpt2":
    model = _byte_level(place, found, tokens)
  elif kind == "llama":
    model = _sentencepiece(place, found, tokens, kinds, named["unk_token"])
  else:
    raise ValueError(
      f"{place}: {_PREFIX}model={kind!r} is not read; allowed: gpt2 (byte-level BPE), llama "
      "(SentencePiece). Give the folder of a Hugging Face model"
    )
  pairs = [*zip(tokens, kinds, strict=True)]
  special = {token for token, k in pairs if k == _CONTROL}
  special |= {token for name, token in named.items() if token and name != "unk_token"}
  special |= {token for key in ENDS if (token := _named(place, found, f"{key}_token_id"))}
  added = [tokenizers.AddedToken(t, normalized=False, special=True) for t in tokens if t in special]
  model.add_special_tokens(added)
  own = [token for token, k in pairs if k == _USER and token not in special]
  model.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in own])
  adds = _adds(found, kind)
  _put_around(model, named, adds)
  settings = {name: token for name, token in named.items() if token is not None} | adds
  settings |= {"clean_up_tokenization_spaces": False}
  if "tokenizer.chat_template" in metadata:
    settings["chat_template"] = metadata["tokenizer.chat_template"]
  return {
    "tokenizer.json": model.to_str(),
    "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False),
  }


def _named(place: object, found: Mapping[str, Any], key: str) -> str | None:
  """Returns the token whose number a key has."""
  number = found.get(key)
  if number is None:
    return None
  if not isinstance(number, int) or not 0 <= number < len(found["tokens"]):
    last = len(found["tokens"]) - 1
    raise ValueError(f"{place}: {_PREFIX}{key}={number!r} is no token; allowed: 0..{last}")
  return found["tokens"][number]


def _adds(found: Mapping[str, Any], kind: str) -> dict[str, bool]:
  """Returns what stands around texts, where the file does not say, as llama.cpp takes it."""
  begins = kind == "llama" or found.get("pre") in _BEGIN
  return {
    "add_bos_token": bool(found.get("add_bos_token", begins)),
    "add_eos_token": bool(found.get("add_eos_token", False)),
  }


def _put_around(
  model: tokenizers.Tokenizer, named: Mapping[str, str | None], adds: Mapping[str, bool]
) -> None:
  # By their names in the template, since a token may be spelled as a part of one, such as $A.
  given = {k: t for k, t in named.items() if t is not None and adds.get(f"add_{k}")}
  if not given:
    return
  one, two = (
    [f"{key}:{i}" for key in ("bos_token", f"${text}", "eos_token") if key in {*given, f"${text}"}]
    for i, text in enumerate("AB")
  )
  own = [{"id": k, "ids": [model.token_to_id(t)], "tokens": [t]} for k, t in given.items()]
  model.post_processor = processors.TemplateProcessing(
    single=one, pair=one + two, special_tokens=own
  )


def _byte_level(
  place: object, found: Mapping[str, Any], tokens: Sequence[str]
) -> tokenizers.Tokenizer:
  """Returns a BPE over bytes, each of which a character stands for."""
  cut = found.get("pre", "default")
  if cut == "default":
    warn_once(
      f"{place} does not say how texts are cut into words ({_PREFIX}pre); GPT-2's way is taken"
    )
  if cut not in _CUTS:
    raise ValueError(
      f"{place}: {_PREFIX}pre={cut!r}, how texts are cut into words, is not read; allowed: "
      f"{', '.join(_CUTS)}. Give the folder of a Hugging Face model"
    )
  merges = [(a, b) for a, _, b in (merge.partition(" ") for merge in found.get("merges", ()))]
  ids = {token: i for i, token in enumerate(tokens)}
  try:
    bpe = models.BPE(ids, merges, ignore_merges=cut in _WHOLE_WORDS)
  except Exception as error:  # The library raises Exception itself.
    said = " ".join(str(error).split())  # a token that it names may be a line break
    raise ValueError(f"{place}: {_PREFIX}merges do not fit the tokens: {said}") from None
  model = tokenizers.Tokenizer(bpe)
  by_rule = _CUTS[cut] in (_GPT2, _DIGITS)
  steps: list[pre_tokenizers.PreTokenizer] = [
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=by_rule)
  ]
  if _CUTS[cut] == _DIGITS:
    steps = [pre_tokenizers.Digits(individual_digits=True), *steps]
  elif not by_rule:
    steps = [pre_tokenizers.Split(tokenizers.Regex(_CUTS[cut]), "isolated"), *steps]
  if cut == "qwen2":
    model.normalizer = normalizers.NFC()
  model.pre_tokenizer = pre_tokenizers.Sequence(steps)
  model.decoder = decoders.ByteLevel()
  return model


def _sentencepiece(
  place: object,
  found: Mapping[str, Any],
  tokens: Sequence[str],
  kinds: Sequence[int],
  unknown: str | None,
) -> tokenizers.Tokenizer:
  """Returns a BPE over characters, whose merges are all pairs that spell a token, best first."""
  scores = found.get("scores")
  if not scores or len(scores) != len(tokens):
    raise ValueError(
      f"{place}: {_PREFIX}scores has {len(scores or ())} numbers for {len(tokens)} tokens; they "
      "say what is merged first: give a file with one for each"
    )
  ids = {token: i for i, token in enumerate(tokens)}
  usable = {t for t, k in zip(tokens, kinds, strict=True) if k in (_NORMAL, _USER)}
  merges = [
    (-scores[ids[whole]], ids[whole], ids[whole[:cut]], ids[whole[cut:]])
    for whole in usable
    for cut in range(1, len(whole))
    if whole[:cut] in usable and whole[cut:] in usable
  ]
  pairs = [(tokens[a], tokens[b]) for _, _, a, b in sorted(merges)]
  byte_fallback = "<0x00>" in ids
  model = tokenizers.Tokenizer(
    models.BPE(ids, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=byte_fallback)
  )
  spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
  if found.get("add_space_prefix", True):
    model.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    spaces.append(decoders.Strip(" ", 1, 0))
  else:
    model.normalizer = normalizers.Replace(" ", "▁")
  model.decoder = decoders.Sequence(spaces)
  return model
