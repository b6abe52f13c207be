"""Small tokenizers of each kind that pretrained models come with, and what they make of a text.

`KINDS` holds them by name; `folder` writes one as the files of a model. The numbers are those of
transformers' AutoTokenizer; `tests/interop/huggingface/tokenizer_kinds_test.py` compares with it.
"""

import dataclasses
import json
import pathlib
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tests.helpers import pretrained

_QWEN_PARTS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
  r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclasses.dataclass(frozen=True)
class Kind:
  """A tokenizer of a kind, and what it makes of `TEXT`.

  Attributes:
    model: makes its tokenizer.json.
    settings: its tokenizer_config.json.
    config: what config.json says about its tokens.
    before: the tokens that its rules put in front of a text.
    ids: the tokens of `TEXT`, without those around it.
    after: the tokens that its rules put behind a text.
    generation: its generation_config.json; empty: it has none.
  """

  model: Callable[[], tokenizers.Tokenizer]
  settings: Mapping[str, Any]
  config: Mapping[str, Any]
  before: tuple[int, ...]
  ids: tuple[int, ...]
  after: tuple[int, ...] = ()
  generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)


TEXT = "the end é"


def folder(place: pathlib.Path, name: str) -> pathlib.Path:
  """Writes the kind of this name as the folder place/NAME of a model of two layers."""
  kind = KINDS[name]
  made = pretrained.folder(place).rename(place / name)
  kind.model().save(str(made / "tokenizer.json"))
  config = json.loads((made / "config.json").read_text())
  files = {"tokenizer_config.json": kind.settings, "config.json": config | kind.config}
  (made / "generation_config.json").unlink()  # that of the golden model, which has other tokens
  if kind.generation:
    files["generation_config.json"] = kind.generation
  for file, content in files.items():
    (made / file).write_text(json.dumps(content))
  return made


def _byte_level(
  special: Sequence[str], *, first: Sequence[str] = (), plain: Sequence[str] = ()
) -> tokenizers.Tokenizer:
  """Returns a byte-level BPE with two merges.

  Args:
    special: the special tokens behind the others.
    first: tokens of the vocabulary in front of all others.
    plain: added tokens behind the others, which are not special.
  """
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  words = [*first, *alphabet, "th", "the"]
  made = tokenizers.Tokenizer(
    models.BPE({word: i for i, word in enumerate(words)}, [("t", "h"), ("th", "e")])
  )
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoders.ByteLevel()
  made.post_processor = processors.ByteLevel(trim_offsets=False)
  made.add_tokens(list(plain))
  made.add_special_tokens([*first, *special])
  return made


def _gpt2() -> tokenizers.Tokenizer:
  return _byte_level(["<|endoftext|>"])


def _unflagged() -> tokenizers.Tokenizer:
  return _byte_level([], plain=["<|endoftext|>", "<|end|>"])


def _smollm() -> tokenizers.Tokenizer:
  return _byte_level([], first=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def _qwen() -> tokenizers.Tokenizer:
  made = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
  made.normalizer = normalizers.NFC()
  made.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(_QWEN_PARTS), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  return made


def _llama3() -> tokenizers.Tokenizer:
  made = _byte_level(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
  begin = ("<|begin_of_text|>", 258)
  made.post_processor = processors.Sequence(
    [
      processors.ByteLevel(trim_offsets=False),
      processors.TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin]),
    ]
  )
  return made


def _pythia() -> tokenizers.Tokenizer:
  """Has a template that its class in transformers does not heed."""
  made = _byte_level([], first=["<|endoftext|>"])
  made.normalizer = normalizers.NFC()
  made.post_processor = processors.TemplateProcessing(
    single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
  )
  return made


def _sentencepiece(special: Sequence[str]) -> tokenizers.Tokenizer:
  """Returns a BPE of letters with a fallback to bytes, and three merges."""
  words = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *string.ascii_lowercase]
  merges = [("t", "h"), ("th", "e"), ("▁", "the")]
  words += [a + b for a, b in merges]
  made = tokenizers.Tokenizer(
    models.BPE(
      {word: i for i, word in enumerate(words)},
      merges,
      unk_token="<unk>",
      fuse_unk=True,
      byte_fallback=True,
    )
  )
  made.add_special_tokens(list(special))
  return made


def _llama2(template: str = "<s> $A") -> tokenizers.Tokenizer:
  made = _sentencepiece(["<unk>", "<s>", "</s>"])
  made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
  made.decoder = decoders.Sequence(
    [
      decoders.Replace("▁", " "),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(" ", 1, 0),
    ]
  )
  made.post_processor = processors.TemplateProcessing(
    single=template, special_tokens=[("<s>", 1), ("</s>", 2)]
  )
  return made


def _llama2_with_end() -> tokenizers.Tokenizer:
  return _llama2("<s> $A </s>")


def _gemma() -> tokenizers.Tokenizer:
  made = _sentencepiece(["<pad>", "<eos>", "<bos>", "<unk>", "<end_of_turn>"])
  made.normalizer = normalizers.Replace(" ", "▁")
  made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
  made.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
  )
  made.post_processor = processors.TemplateProcessing(
    single="<bos> $A", special_tokens=[("<bos>", 2)]
  )
  return made


def _byte_fallback() -> tokenizers.Tokenizer:
  """Has Metaspace in front of the first word alone, and no post-processor."""
  made = _sentencepiece(["<unk>", "<s>", "</s>"])
  made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
  made.decoder = decoders.Sequence(
    [
      decoders.Replace("▁", " "),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(" ", 1, 0),
    ]
  )
  return made


def _unigram() -> tokenizers.Tokenizer:
  """Has the end of a text behind each text, as T5 has it."""
  special = ["<pad>", "</s>", "<unk>"]
  pieces = [*special, "▁", *string.ascii_lowercase, "<", ">", "/", "▁the", "▁end"]
  made = tokenizers.Tokenizer(
    models.Unigram([(p, 0.0 if p in special else -5.0 / len(p)) for p in pieces], unk_id=2)
  )
  made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
  made.decoder = decoders.Metaspace(prepend_scheme="always")
  made.post_processor = processors.TemplateProcessing(
    single="$A </s>", special_tokens=[("</s>", 1)]
  )
  made.add_special_tokens(special)
  return made


def _nfkc() -> tokenizers.Tokenizer:
  """Maps full-width letters to plain ones, and has bytes for what it does not know."""
  special = ["<unk>", "<s>", "</s>"]
  pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
  pieces += [*string.ascii_lowercase, "▁the", "▁end"]
  scores = [
    0.0 if p in special else -20.0 if p.startswith("<0x") else -5.0 / len(p) for p in pieces
  ]
  made = tokenizers.Tokenizer(
    models.Unigram(list(zip(pieces, scores, strict=True)), unk_id=0, byte_fallback=True)
  )
  made.normalizer = normalizers.NFKC()
  made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
  made.decoder = decoders.Sequence(
    [
      decoders.ByteFallback(),
      decoders.Metaspace(prepend_scheme="always"),
    ]
  )
  made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
  made.add_special_tokens(special)
  return made


def _wordpiece() -> tokenizers.Tokenizer:
  """Spells parts of words with ## in front, in lower case without accents, as BERT does."""
  special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
  letters = [*string.ascii_lowercase]
  pieces = [*special, *letters, *(f"##{letter}" for letter in letters), "the", "en"]
  made = tokenizers.Tokenizer(
    models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
  )
  made.normalizer = normalizers.BertNormalizer(lowercase=True)
  made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  made.decoder = decoders.WordPiece(prefix="##", cleanup=True)
  made.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
  )
  made.add_special_tokens(special)
  return made


def _settings(name: str, **settings: Any) -> dict[str, Any]:
  return {"tokenizer_class": name, "clean_up_tokenization_spaces": False} | settings


def _config(bos: int | None, eos: int | list[int], vocab_size: int) -> dict[str, Any]:
  return {"bos_token_id": bos, "eos_token_id": eos, "vocab_size": vocab_size}


_BYTES = 257, 220, 68, 77, 67, 220, 127, 102  # of `TEXT`, where the alphabet comes first
_PIECES = 288, 259, 264, 273, 263, 259, 198, 172
_FAST = "PreTrainedTokenizerFast"
_SPM = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_END = "<|endoftext|>"

KINDS = {
  "bpe": Kind(
    _gpt2,
    _settings("GPT2Tokenizer", bos_token=_END, eos_token=_END, unk_token=_END),
    _config(258, 258, 270),
    (), _BYTES,
  ),
  "bpe_unflagged": Kind(
    _unflagged, _settings(_FAST, eos_token="<|end|>"), _config(258, 259, 270), (), _BYTES
  ),
  "smollm": Kind(
    _smollm,
    _settings("GPT2Tokenizer", bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token=_END),
    _config(1, 2, 270),
    (), (260, 223, 71, 80, 70, 223, 130, 105),
  ),
  "qwen": Kind(
    _qwen,
    _settings("Qwen2Tokenizer", add_bos_token=False, eos_token="<|im_end|>", pad_token=_END),
    _config(258, 260, 270),
    (), _BYTES,
    generation={"bos_token_id": 258, "eos_token_id": [260, 258], "pad_token_id": 258},
  ),
  "llama3": Kind(
    _llama3,
    _settings(_FAST, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"),
    _config(258, 259, 270),
    (258,), _BYTES,
    generation={"bos_token_id": 258, "eos_token_id": [259, 260]},
  ),
  "pythia": Kind(
    _pythia,
    _settings("GPTNeoXTokenizer", bos_token=_END, eos_token=_END, unk_token=_END),
    _config(0, 0, 270),
    (), (258, 221, 69, 78, 68, 221, 128, 103),
  ),
  "llama2": Kind(
    _llama2,
    _settings("LlamaTokenizer", add_bos_token=True, **_SPM), _config(1, 2, 300), (1,), _PIECES,
  ),
  "llama2_with_end": Kind(
    _llama2_with_end,
    _settings(_FAST, add_eos_token=True, **_SPM), _config(1, 2, 300), (1,), _PIECES, (2,),
  ),
  "gemma": Kind(
    _gemma,
    _settings("GemmaTokenizer", bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"),
    _config(2, 1, 300),
    (2,), (289, 261, 266, 275, 265, 261, 200, 174),
    generation={"bos_token_id": 2, "eos_token_id": [1, 4], "pad_token_id": 0},
  ),
  "byte_fallback": Kind(_byte_fallback, _settings(_FAST, **_SPM), _config(1, 2, 300), (), _PIECES),
  "unigram": Kind(
    _unigram,
    _settings(_FAST, eos_token="</s>", unk_token="<unk>", pad_token="<pad>"),
    _config(None, 1, 64),
    (), (33, 34, 3, 2), (1,),
  ),
  "nfkc": Kind(
    _nfkc, _settings(_FAST, **_SPM), _config(1, 2, 300), (1,), (286, 287, 259, 198, 172)
  ),
  "wordpiece": Kind(
    _wordpiece,
    _settings(_FAST, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"),
    _config(2, 3, 70),
    (2,), (56, 57, 33, 8), (3,),
  ),
}  # fmt: skip
