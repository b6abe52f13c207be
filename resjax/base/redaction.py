"""Leaves secrets out of printed text: what is called a key, token or password, and a URL's user."""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

HIDDEN = "***"

# Endings of the parts of a name: WANDB_API_KEY, hf-token, db.password; `tokens` is none.
_SECRETS = (
  *("key", "keys", "token", "secret", "secrets", "password", "passwd", "passphrase"),
  *("credential", "credentials"),
)
_LAST = {"auth", "pass", "pat", "pwd"}  # the last of several parts: DB_PASS; PWD is the folder
_SETTING = re.compile(r"(-{0,2}(?:env=)?([A-Za-z_][\w.-]*)=)(.+)", re.DOTALL)
_KEY = r"(?<![\w.-])([A-Za-z_][\w.-]*)="
_QUOTED = r"""'[^']*'|"(?:[^"\\]|\\.)*\""""
# A value of a script may be several pieces, with and without quotes; a quote may stay open.
_IN_SCRIPT = re.compile(rf"""{_KEY}((?:{_QUOTED}|\\.|[^\s'"\\])+|['"]\S*)""", re.DOTALL)
# The quote behind a value of other text may end what stands around it: '--env=KEY=VALUE'.
_IN_TEXT = re.compile(rf"""{_KEY}((?:{_QUOTED})+|[^\s'"]+|['"]\S*)""", re.DOTALL)
_IN_URL = re.compile(r"""(?<=://)[^/?#\s'"]+@""")
_FEWEST = 6  # letters of a value that is looked for in a text: shorter ones are in any text


def is_secret(name: str) -> bool:
  """Returns whether the name of a variable or of a flag looks like that of a secret."""
  parts = [part for part in re.split(r"[\W_]+", name.lower()) if part]
  return any(part.endswith(_SECRETS) for part in parts) or (len(parts) > 1 and parts[-1] in _LAST)


def mask(values: Mapping[str, str]) -> dict[str, str]:
  """Returns variables with `***` in place of secrets."""
  return {name: HIDDEN if is_secret(name) else text(value) for name, value in values.items()}


def words(command: Sequence[str]) -> list[str]:
  """Returns the words of a command line without secrets.

  A secret is the value of KEY=VALUE, --KEY=VALUE or --env=KEY=VALUE, the word behind a flag --KEY,
  and what looks like KEY=VALUE within a word, such as a script, where KEY is a name for
  `is_secret`; and USER:PASSWORD of a URL.
  """
  found, hide_next = [], False
  for word in command:
    setting = _SETTING.fullmatch(word)
    if hide_next and not word.startswith("--"):
      found.append(HIDDEN)
    elif setting and is_secret(setting[2]):
      found.append(setting[1] + HIDDEN)
    else:
      found.append(_without(_IN_SCRIPT, word))
    hide_next = bool(re.fullmatch(r"--?[A-Za-z][\w.-]*", word)) and is_secret(word.lstrip("-"))
  return found


def text(given: str) -> str:
  """Returns a text without secrets: of the environment, the command line, KEY=VALUE and URLs."""
  for value in sorted(_known(), key=len, reverse=True):
    given = given.replace(value, HIDDEN)
  return _without(_IN_TEXT, given)


def _without(settings: re.Pattern[str], given: str) -> str:
  def shown(found: re.Match) -> str:
    is_example = found[0] == "KEY=VALUE"  # in messages
    return f"{found[1]}={HIDDEN}" if is_secret(found[1]) and not is_example else found[0]

  return _IN_URL.sub(f"{HIDDEN}@", settings.sub(shown, given))


def _known() -> set[str]:
  """Returns the values of secrets that this process was given."""
  values = {value for name, value in os.environ.items() if is_secret(name)}
  values |= set(_values(sys.argv))
  return {value for value in values if len(value) >= _FEWEST and value != HIDDEN}


def _values(command: Iterable[str]) -> Iterable[str]:
  before = ""
  for word in command:
    setting = _SETTING.fullmatch(word)
    if setting and is_secret(setting[2]):
      yield setting[3]
    if before.startswith("-") and "=" not in before and is_secret(before.lstrip("-")):
      yield word
    before = word
