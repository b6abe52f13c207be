"""What stands around the documents that a model with a pretrained tokenizer is trained on."""

from resjax.data import special_tokens
from resjax.data.model_ids import Given, unique
from resjax.data.pretrained_tokenizer import PretrainedTokenizer
from resjax.data.special_tokens import Around, Settings

_SETTING = "config.data.tokenizer.documents"


def tokens_around(tokenizer: PretrainedTokenizer, rule: str) -> Around | None:
  """Returns the tokens around documents by a rule of `config.DOCUMENTS`.

  The end of text is the eos_token of the tokenizer, else the first eos_token_id of the model. It is
  a target behind every document, so that a model learns to end. Where nothing is to stand before a
  document, or the same token, one token separates documents.

  Args:
    tokenizer: the tokenizer.
    rule: `auto`: before a document stands what the tokenizer's own rules put before a text, and
      behind it what they put there or else the end of text; `bos`: the token that begins texts
      separates documents; `eos`: the one that ends them does; `bos_eos`: one before, one behind;
      empty: as in the runs of releases without this setting.

  Returns:
    The tokens; None for the empty rule.

  Raises:
    ValueError: the tokenizer has no such token, or it is the only one for a character of texts.
  """
  if not rule:
    return None
  bos, eos = _begin(tokenizer), _end(tokenizer)
  for name, wanted, known in (("begins", "bos", bos), ("ends", "eos", eos)):
    if wanted in rule and not known:
      raise ValueError(
        f"{_SETTING} is {rule!r}, and the tokenizer has no token that {name} texts; set 'auto'"
      )
  own = tokenizer.around
  before, after = {
    "auto": (own.before, own.after or eos),
    "bos": (bos, ()),
    "eos": (eos, ()),
    "bos_eos": (bos, eos),
  }[rule]
  before, after = before or after or bos, after
  found = Around(before, () if before == after else after)
  text = [token for token in found.tokens if token not in tokenizer.control]
  if text:
    spelled = tokenizer.piece(text[0]).decode(errors="replace")
    raise ValueError(
      f"{_SETTING} is {rule!r}, which puts token {text[0]} around documents; but that is the only "
      f"one for the text {spelled!r}; set another one of bos, eos and bos_eos"
    )
  return found


def with_documents(tokenizer: PretrainedTokenizer, rule: str, markup: str) -> PretrainedTokenizer:
  """Returns a tokenizer that makes documents by a rule of `config.DOCUMENTS` and of `MARKUP`."""
  return PretrainedTokenizer(
    tokenizer.files,
    tokenizer.vocab_size,
    tokenizer.ids,
    tokenizer.generation,
    tokens_around(tokenizer, rule),
    markup,
  )


def _begin(tokenizer: PretrainedTokenizer) -> tuple[int, ...]:
  spelled = special_tokens.spelling(Settings.of(tokenizer.files).bos_token)
  named = None if spelled is None else tokenizer.model.token_to_id(spelled)
  return _first(tokenizer, tokenizer.ids["bos_token_id"], named)


def _end(tokenizer: PretrainedTokenizer) -> tuple[int, ...]:
  named = special_tokens.end(tokenizer.model, tokenizer.files)
  return _first(tokenizer, named, tokenizer.ids["eos_token_id"])


def _first(tokenizer: PretrainedTokenizer, *given: Given) -> tuple[int, ...]:
  """Returns the first valid token as a tuple; configs use -1 or an id without a row for none."""
  return tuple(token for token in unique(*given) if 0 <= token < tokenizer.vocab_size)[:1]
