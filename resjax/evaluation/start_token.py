"""The token that begins a text, and whether contexts begin with it, by the files of a tokenizer."""

import dataclasses
from typing import Any

from resjax import typed_json
from resjax.data.pretrained_tokenizer import PretrainedTokenizer
from resjax.data.tokenizer import Tokenizer

RULES = ("auto", "always", "never")
_SETTINGS = "tokenizer_config.json"

_Spelled = str | dict[str, Any] | None


@dataclasses.dataclass(frozen=True)
class _Settings:
  tokenizer_class: str | None = None
  add_bos_token: bool | None = None
  bos_token: _Spelled = None
  eos_token: _Spelled = None


def start_token(tokenizer: Tokenizer) -> int:
  """Returns the token before the first one of a text: that which begins texts, else ends them.

  Where tokenizer_config.json names none of the two, it is the `eot_id` of the tokenizer.
  """
  if isinstance(tokenizer, PretrainedTokenizer):
    settings = _settings(tokenizer)
    for token in (settings.bos_token, settings.eos_token):
      spelled = token.get("content") if isinstance(token, dict) else token
      number = tokenizer.model.token_to_id(spelled) if isinstance(spelled, str) else None
      if number is not None:
        return number
  return tokenizer.eot_id


def begins_contexts(tokenizer: Tokenizer, rule: str = "auto") -> bool:
  """Returns whether contexts begin with the token that begins texts.

  Args:
    tokenizer: the tokenizer of the model.
    rule: `always`, `never`, or `auto`: as tokenizer_config.json or else tokenizer.json say; always
      for Gemma, which is lost without that token; not for tokenizers that resjax has learned.

  Raises:
    ValueError: the rule is unknown.
  """
  if rule not in RULES:
    raise ValueError(f"bos={rule!r} is unknown; allowed: {', '.join(RULES)}")
  if rule != "auto" or not isinstance(tokenizer, PretrainedTokenizer):
    return rule == "always"
  settings = _settings(tokenizer)
  if (settings.tokenizer_class or "").startswith("Gemma"):
    return True
  if settings.add_bos_token is not None:
    return settings.add_bos_token
  by_itself = tokenizer.model.encode("a", add_special_tokens=True).ids
  return by_itself[:1] == [start_token(tokenizer)]


def _settings(tokenizer: PretrainedTokenizer) -> _Settings:
  return typed_json.parse(tokenizer.files.get(_SETTINGS, "{}"), _Settings, _SETTINGS)
