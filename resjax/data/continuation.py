"""The text of a continuation, and the tokens at which one ends."""

from collections.abc import Callable, Sequence

from resjax.data.tokenizer import END_OF_TEXT, Tokenizer

_LONGEST = 4  # bytes of a character in UTF-8
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # decoders put it where bytes are no character


def text_behind(
  decode: Callable[[list[int]], str], before: Sequence[int], tokens: Sequence[int]
) -> str:
  """Returns the text of a continuation.

  It is the text of all tokens, without the text of the tokens before. Decoded alone, a continuation
  would lose its first space with many tokenizers.

  Args:
    decode: returns the text of tokens.
    before: the tokens of the continued text.
    tokens: the tokens of the continuation.
  """
  given = decode(list(before))
  whole = decode([*before, *tokens])
  if whole.startswith(given):
    return whole[len(given) :]
  if _UNKNOWN in whole:
    # Bytes of a character that is not whole undo the characters in front of it, as far as these
    # are spelled in bytes; so they are looked for, and left out.
    for size in range(1, _LONGEST):
      good = 0
      for start in range(len(tokens) - size + 1):
        front = decode([*before, *tokens[:start]])
        if front.startswith(given):
          good = start
          rest = decode([*before, *tokens[:start], *tokens[start + size :]])
          if rest.startswith(front):
            return front[len(given) :] + _UNKNOWN + rest[len(front) :]
        elif start - good >= _LONGEST:  # no character is that long, so more is broken before
          break
  pairs = enumerate(zip(given, whole, strict=False))
  same = next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(given), len(whole)))
  return whole[same:]


def stop_tokens(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
  """Returns the stop tokens that a text names.

  Args:
    tokenizer: the tokenizer.
    text: the spelling of a token, special or not; or END_OF_TEXT for the end of documents, beside
      the token of that spelling.

  Raises:
    ValueError: the text names no token.
  """
  found = [tokenizer.eot_id] if text == END_OF_TEXT else []
  pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)] if text else []
  found += [token for token, piece in enumerate(pieces) if piece == text.encode()]
  tokens = [] if text == END_OF_TEXT else tokenizer.encode_batch([text])[0].tolist()
  what = f"{len(tokens)} tokens"
  if len(tokens) == 1:
    # That of an unknown word stands for other texts, too.
    what = f"the token of {pieces[tokens[0]].decode(errors='replace')!r}"
    if pieces[tokens[0]].strip(b" ") == text.strip(" ").encode():
      found += tokens
  if not found:
    raise ValueError(
      f"stop={text!r} is {what}; it must be one, special or not, or {END_OF_TEXT} for the end of "
      "text"
    )
  return tuple(dict.fromkeys(found))
