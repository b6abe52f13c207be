"""What users add to a config on the command line: options of combinators, and corpora."""

import sys
from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags import config_flags

from resjax.study import config_tree

_IMPORT = flags.DEFINE_multi_string(
  "import",
  [],
  "module:Class of a combinator; its module is imported, which runs its code. A run that was "
  "trained with it is read only with this flag.",
)
_CORPORA = "data.corpora."
_NAME = "config.model.residual.name"


def import_all() -> None:
  """Imports the combinators of --import.

  Raises:
    ValueError: one cannot be imported.
  """
  _load(_IMPORT.value)


def words() -> list[str]:
  """Returns the flags that have another command import the same."""
  return [f"--import={name}" for name in _IMPORT.value]


class ConfigParser(config_flags.ConfigFileFlagParser):
  """Reads a config file, and adds sections that the command line mentions.

  These are the options of the chosen combinator, of other combinators of which an option is given,
  and corpora whose source is given. They can be set and
  are checked as any others.
  """

  def parse(self, path: str) -> ConfigDict:
    """Returns the config of FILE[:ARGUMENT]."""
    config, settings = super().parse(path), _settings()
    if dashed := [one for one in settings if one.startswith(_CORPORA) and "-" in one]:
      why = "the command line takes a - in a name for a minus; use _, or a config file"
      raise flags.Error(f"config.{dashed[0]}: {why}")
    residual = config_tree.residual_of(config)
    if residual is not None:
      _add_system(residual)
    try:
      config_tree.add_sections(config, settings)
      config_tree.add_corpora(config, settings)
    except ValueError as error:  # absl would say that --config is wrong
      raise flags.Error(str(error)) from error
    return config


def _add_system(residual: ConfigDict) -> None:
  """Adds the options of the chosen combinator, which may be from outside."""
  name = (_given(_NAME) or [residual.get("name")])[-1]
  if isinstance(name, str):
    _load(_given("import"))
    try:
      config_tree.add_system(residual, name)
    except ValueError as error:
      raise flags.Error(f"{_NAME}: {error}") from error


def _load(names: Sequence[str]) -> None:
  if names:
    from resjax import combinators

    for name in names:
      combinators.load(name)


def _settings() -> list[str]:
  """Returns the names of the settings of the command line, which is not parsed yet."""
  keys = [word.partition("=")[0].lstrip("-") for word in sys.argv if word.startswith("-")]
  return [key.removeprefix("config.") for key in keys if key.startswith("config.")]


def _given(flag: str) -> list[str]:
  """Returns the values of a flag on the command line, which is not parsed yet."""
  found = []
  for word, following in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
    key, equals, value = word.partition("=")
    if key in (f"--{flag}", f"-{flag}"):
      found.append(value if equals else following)
  return found
