"""The special tokens that the rules of a pretrained tokenizer put around a text.

They equal the rules of transformers (since version 5) for the same files: the
post-processor of tokenizer.json decides, and add_bos_token and add_eos_token of
tokenizer_config.json, which were made into that file when it was written, are not heeded again.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Self

import tokenizers

from resjax.base import typed_json
from resjax.data.warn_once import warn_once

SETTINGS = "tokenizer_config.json"
_MAP = "special_tokens_map.json"
# Classes of transformers that replace the post-processor by one that adds nothing.
_WITHOUT = ("GPTNeoXTokenizer",)

Spelled = str | dict[str, Any] | None  # a token as tokenizer_config.json spells it


@dataclasses.dataclass(frozen=True)
class Around:
  """The tokens around a text.

  Attributes:
    before: those in front of it, in their order.
    after: those behind it.
  """

  before: tuple[int, ...] = ()
  after: tuple[int, ...] = ()

  @property
  def tokens(self) -> tuple[int, ...]:
    """All special tokens around a text, those in front first."""
    return self.before + self.after


@dataclasses.dataclass(frozen=True)
class Settings:
  """What tokenizer_config.json says about special tokens."""

  tokenizer_class: str | None = None
  add_bos_token: bool | None = None
  add_eos_token: bool | None = None
  bos_token: Spelled = None
  eos_token: Spelled = None

  @classmethod
  def of(cls, files: Mapping[str, str]) -> Self:
    """Returns the settings of a tokenizer with these files, by name.

    Raises:
      ValueError: tokenizer_config.json is damaged.
    """
    return typed_json.parse(files.get(SETTINGS, "{}"), cls, SETTINGS)


def around(model: tokenizers.Tokenizer, files: Mapping[str, str]) -> Around:
  """Returns the tokens that the rules of a tokenizer put around a text.

  A line is logged where a flag of tokenizer_config.json says something else.

  Args:
    model: the model of tokenizer.json, which neither cuts nor pads texts.
    files: the contents of the tokenizer's files by name.

  Raises:
    ValueError: tokenizer_config.json is damaged.
  """
  settings = Settings.of(files)
  found = _of_post_processor(model)
  if (settings.tokenizer_class or "").removesuffix("Fast") in _WITHOUT:
    found = Around()
  asked = {"add_bos_token": settings.add_bos_token, "add_eos_token": settings.add_eos_token}
  for (name, value), tokens in zip(asked.items(), (found.before, found.after), strict=True):
    if value is not None and value != bool(tokens):
      warn_once(
        f"{SETTINGS} says {name}={str(value).lower()}, and the post-processor of tokenizer.json "
        f"puts {'a token' if tokens else 'nothing'} there; it decides, as in transformers"
      )
  return found


def _of_post_processor(model: tokenizers.Tokenizer) -> Around:
  """Returns the tokens that the post-processor of a model puts around a text."""
  # Any text that has tokens shows them; some vocabularies know no "a".
  texts = itertools.chain(["a"], model.get_vocab())
  text = next(filter(None, (_encoding(model, text) for text in texts)), None)
  if text is None:
    return Around()
  whole = model.post_process(text)
  added = list(zip(whole.ids, whole.special_tokens_mask, strict=True))
  before = [token for token, _ in itertools.takewhile(lambda one: one[1], added)]
  rest = reversed(added[len(before) :])
  after = [token for token, _ in itertools.takewhile(lambda one: one[1], rest)]
  return Around(tuple(before), tuple(after[::-1]))


def end(model: tokenizers.Tokenizer, files: Mapping[str, str]) -> int | None:
  """Returns the token that ends a text by the tokenizer's own files; None: they name none.

  Raises:
    ValueError: tokenizer_config.json or special_tokens_map.json is damaged.
  """
  text = spelling(Settings.of(files).eos_token) or spelling(_named(files).eos_token)
  return None if text is None else model.token_to_id(text)


def _named(files: Mapping[str, str]) -> Settings:
  return typed_json.parse(files.get(_MAP, "{}"), Settings, _MAP)


@dataclasses.dataclass(frozen=True)
class _Special:
  """What a file says which tokens are special."""

  bos_token: Any = None
  eos_token: Any = None
  pad_token: Any = None
  cls_token: Any = None
  sep_token: Any = None
  mask_token: Any = None
  additional_special_tokens: Any = None
  extra_special_tokens: Any = None
  added_tokens_decoder: Any = None

  def spellings(self) -> Iterator[str]:
    for field in dataclasses.fields(self)[:6]:
      yield from filter(None, [spelling(getattr(self, field.name))])
    for some in (self.additional_special_tokens, self.extra_special_tokens):
      listed = some.values() if isinstance(some, dict) else some if isinstance(some, list) else ()
      yield from filter(None, map(spelling, listed))
    if isinstance(self.added_tokens_decoder, dict):
      for token in self.added_tokens_decoder.values():
        if isinstance(token, dict) and token.get("special") is True:
          yield from filter(None, [spelling(token)])


def named(model: tokenizers.Tokenizer, files: Mapping[str, str]) -> frozenset[int]:
  """Returns the tokens that the files beside tokenizer.json call special.

  transformers keeps them out of texts although tokenizer.json may not flag them.

  Args:
    model: the model of tokenizer.json.
    files: the contents of the tokenizer's files by name.

  Raises:
    ValueError: a file is damaged.
  """
  said = [typed_json.parse(files.get(name, "{}"), _Special, name) for name in (SETTINGS, _MAP)]
  ids = (model.token_to_id(word) for one in said for word in one.spellings())
  return frozenset(token for token in ids if token is not None)


def _encoding(model: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding | None:
  """Returns the tokens of a text; None where the model knows none."""
  try:
    return model.encode(text, add_special_tokens=False) or None
  except Exception:  # The library raises Exception itself.
    return None


def spelling(token: Spelled) -> str | None:
  """Returns the text of a token, which may stand in a dict with its properties."""
  found = token.get("content") if isinstance(token, dict) else token
  return found if isinstance(found, str) else None
