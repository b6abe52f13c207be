"""How the text of tasks becomes tokens: the rule for the token that begins a text, and chats."""

import dataclasses
import datetime
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from resjax.data import (
  MAIN,
  PretrainedTokenizer,
  Tokenizer,
  library_model,
  prefix,
  special_tokens,
  unique,
)
from resjax.interop.huggingface.tokenizer_files import tokenizer_files

_TEMPLATE = "chat_template.jinja"
_MARK = "<the message goes on here> "


@dataclasses.dataclass(frozen=True)
class _Settings(special_tokens.Settings):
  """What tokenizer_config.json says that chats need, too."""

  pad_token: special_tokens.Spelled = None
  unk_token: special_tokens.Spelled = None
  chat_template: str | list[dict[str, str]] | None = None


class TaskTokenizer:
  """Encodes the texts of tasks as the model that is measured was given its texts.

  Unlike in training, text that spells a special token becomes that token, as chats need it.

  Args:
    tokenizer: the tokenizer of the model.
    bos: whether texts begin with the token that begins a text: `auto`, `always` or `never`, see
      `prefix.before_contexts`.

  Attributes:
    prefix_id: the token that an empty context is replaced by, see `prefix.start_token`.
    stop_ids: the tokens that end a text.
    begins: whether what the tokenizer's rules say, or else `prefix_id`, stands in front of texts.

  Raises:
    ValueError: the rule is unknown.
  """

  def __init__(self, tokenizer: Tokenizer, bos: str = "auto"):
    files = tokenizer_files(tokenizer)
    self._tokenizer = tokenizer
    self._model = library_model(files[MAIN], MAIN)
    self._model.no_truncation()
    self._model.no_padding()
    self._settings = _Settings.of(files)
    self._files = files
    self.prefix_id = prefix.start_token(tokenizer)
    self.begins = bool(prefix.before_contexts(tokenizer, bos))
    self.stop_ids = self._stop_ids()
    self._front = list(prefix.by_rule(tokenizer, "always").before)
    self._prefix_text = self._model.decode([self.prefix_id], skip_special_tokens=False)

  @property
  def digest(self) -> str:
    """A hash of the tokenizer's files and of the rule."""
    return hashlib.sha256(json.dumps([self._files, self.begins]).encode()).hexdigest()

  @property
  def end_text(self) -> str:
    """The spelling of the token that ends a text."""
    return self._model.decode([self.stop_ids[0]], skip_special_tokens=False)

  def encode(self, text: str, *, begin: bool | None = None) -> list[int]:
    """Returns the tokens of a text.

    Args:
      text: the text.
      begin: whether what begins a text is put in front; None: by the rule, but not where the text
        itself begins with `prefix_id`, as that of a chat template may.
    """
    ids = self._model.encode(text, add_special_tokens=False).ids
    if begin is None:
      begin = self.begins and not (self._prefix_text and text.startswith(self._prefix_text))
    return [*self._front, *ids] if begin else ids

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of tokens, without special ones.

    As in the `hf` backend of the harness, and unlike `continuation.text_behind`, the text before
    them is not known: some tokenizers leave out a space in front of them.
    """
    return self._model.decode(list(ids), skip_special_tokens=True)

  def ending_ids(self, texts: Sequence[str]) -> list[int]:
    """Returns the tokens behind which a text is over: `stop_ids`, and those that hold a stop text.

    A stop text may also be spelled by several tokens, so it has to be looked for in the whole, too.
    """
    # The space in front of the first token of a text may be dropped when it is decoded.
    spelled = [text.encode() for text in texts if text]
    vocabulary = range(self._model.get_vocab_size())
    pieces = ((token, self._tokenizer.piece(token).lstrip(b" ")) for token in vocabulary)
    found = (token for token, piece in pieces if any(text in piece for text in spelled))
    return sorted({*self.stop_ids, *found})

  def chat_template(self, name: str | None = None) -> str:
    """Returns the template of chats, in the language of Jinja.

    Raises:
      ValueError: there is none, or none of this name.
    """
    given = self._files.get(_TEMPLATE) or self._settings.chat_template
    if not given:
      raise ValueError(
        "the tokenizer has no chat template (chat_template in tokenizer_config.json); leave out "
        "--apply_chat_template"
      )
    if isinstance(given, str):
      return given
    named = {entry.get("name", ""): entry.get("template", "") for entry in given}
    if (name or "default") not in named:
      raise ValueError(
        f"the tokenizer has no chat template {name or 'default'!r}; allowed: {', '.join(named)}"
      )
    return named[name or "default"]

  def chat(
    self, messages: Sequence[Mapping[str, str]], *, answer_next: bool, template: str | None = None
  ) -> str:
    """Returns a chat as one text.

    Args:
      messages: the messages, each with a `role` and a `content`.
      answer_next: whether the text ends where the model's answer begins; otherwise it ends inside
        the last message, which the model continues.
      template: the name of the template; None: the only one, or that named `default`.

    Raises:
      ValueError: the template refuses the messages.
    """
    chat = [dict(message) for message in messages]
    if not answer_next:
      chat[-1]["content"] += _MARK
    try:
      text = _template(self.chat_template(template)).render(
        messages=chat,
        add_generation_prompt=answer_next,
        tools=None,
        documents=None,
        **self._named(),
      )
    except jinja2.TemplateError as error:
      raise ValueError(f"the chat template refuses a chat: {error}") from None
    if answer_next:
      return text
    before, mark, _ = text.rpartition(_MARK)
    # A template that trims messages trims the end of the last one, too.
    return before if mark else text[: text.rindex(_MARK.rstrip())].rstrip()

  def _named(self) -> dict[str, str]:
    """Returns the special tokens that templates may use, by name."""
    named = {
      name: special_tokens.spelling(getattr(self._settings, name))
      for name in ("bos_token", "eos_token", "pad_token", "unk_token")
    }
    return {name: text for name, text in named.items() if text is not None}

  def _stop_ids(self) -> tuple[int, ...]:
    """Returns the tokens that end a text: that which the tokenizer names, then all others."""
    tokenizer, own = self._tokenizer, special_tokens.end(self._model, self._files)
    others = tokenizer.ids["eos_token_id"] if isinstance(tokenizer, PretrainedTokenizer) else None
    return unique(own, others) or (tokenizer.eot_id,)


@functools.cache
def _template(text: str) -> jinja2.Template:
  """Returns a template of somebody else, which can do nothing but make text.

  Blocks and what templates call are as in transformers, for which they are written.
  """
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
  )
  environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
  environment.globals |= {
    "raise_exception": _refuse,
    "strftime_now": lambda form: datetime.datetime.now().strftime(form),
  }
  return environment.from_string(text)


class _Generation(jinja2.ext.Extension):
  """The tag around a model's turns in a chat, which matters only in training."""

  tags = {"generation"}  # noqa: RUF012

  def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
    """Returns what stands between the tags."""
    next(parser.stream)
    return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
  raise jinja2.TemplateError(message)
