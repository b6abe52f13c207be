"""What stands in front of a text that a model goes on with or is measured on.

The rules of a pretrained tokenizer say it, see `special_tokens.around`. A model that was trained
here has seen what stands in front of its documents, see `Tokenizer.documents`.
"""

import dataclasses

from resjax.data import special_tokens
from resjax.data.pretrained_tokenizer import PretrainedTokenizer
from resjax.data.special_tokens import Around, Settings
from resjax.data.tokenizer import Tokenizer

RULES = ("auto", "always", "never")


def start_token(tokenizer: Tokenizer) -> int:
  """Returns the token before the first one of a text: that which begins texts, else ends them.

  It stands for a context without tokens. Where tokenizer_config.json names none of the two, it is
  the `eot_id` of the tokenizer. Of a model that was trained here it is what stood before documents.
  """
  if isinstance(tokenizer, PretrainedTokenizer):
    if tokenizer.given_documents is not None:
      return tokenizer.given_documents.before[-1]
    settings = Settings.of(tokenizer.files)
    for token in (settings.bos_token, settings.eos_token):
      spelled = special_tokens.spelling(token)
      number = None if spelled is None else tokenizer.model.token_to_id(spelled)
      if number is not None:
        return number
  return tokenizer.eot_id


def check_rule(rule: str) -> None:
  """Raises ValueError if a rule for what stands in front of texts is unknown."""
  if rule not in RULES:
    raise ValueError(f"bos={rule!r} is unknown; allowed: {', '.join(RULES)}")


def by_rule(tokenizer: Tokenizer, rule: str = "auto") -> Around:
  """Returns the tokens around a text.

  Args:
    tokenizer: the tokenizer of the model. rule: `auto`: the tokens by the rules of a pretrained
    tokenizer, with what stood before documents where the model was trained here; in front of the
    texts of others stands the token that separates documents. `never`: nothing in front. `always`:
    as `auto`, but where that is nothing, `start_token` in front.

  Raises:
    ValueError: the rule is unknown.
  """
  check_rule(rule)
  found = Around((tokenizer.eot_id,))
  if isinstance(tokenizer, PretrainedTokenizer):
    found = tokenizer.around
    if found.before and tokenizer.given_documents is not None:
      found = dataclasses.replace(found, before=tokenizer.given_documents.before)
  if rule == "never":
    return Around((), found.after)
  if rule == "always" and not found.before:
    return Around((start_token(tokenizer),), found.after)
  return found


def before_contexts(tokenizer: Tokenizer, rule: str = "auto") -> tuple[int, ...]:
  """Returns the tokens in front of contexts that are scored, see `by_rule`.

  With `auto` and a tokenizer that resjax has learned, there are none.

  Raises:
    ValueError: the rule is unknown.
  """
  own = not isinstance(tokenizer, PretrainedTokenizer)
  return () if own and rule == "auto" else by_rule(tokenizer, rule).before


def spelled(tokenizer: Tokenizer, before: tuple[int, ...]) -> str:
  """Returns what stands in front of a text in words, such as `<s> (1)`, or `nothing`."""
  named = (f"{tokenizer.piece(i).decode(errors='replace')} ({i})" for i in before)
  return ", ".join(named) or "nothing"
