"""Flags of the commands that measure trained models on one text: which models, which text."""

import dataclasses
from collections.abc import Callable

from absl import flags

from resjax.cli import model_flags
from resjax.cli.actions import loading
from resjax.cli.bos_flag import BOS
from resjax.cli.model_flags import BATCH_SIZE, CHECKPOINTS, FOLDERS
from resjax.data import FORMATS, MeasuredText
from resjax.study import TrainedModel

__all__ = ["CHECKPOINTS", "FOLDERS", "load", "read_text"]

_DATA = flags.DEFINE_string(
  "data",
  None,
  "Folder of a run, for the validation split of its corpora; or python-stdlib, a file, folder or "
  "glob of text, JSON or Parquet, or tfds:NAME[/CONFIG]. Default: the first --checkpoint.",
)
_FORMAT = flags.DEFINE_enum(
  "data_format", "auto", FORMATS, "Format of files; auto: by what they hold."
)
_FIELD = flags.DEFINE_string(
  "data_field", "text", "Field of JSON, column of Parquet or feature of TFDS that holds the text."
)
_TOKENS = flags.DEFINE_integer(
  "tokens",
  0,
  "Most tokens of the text; 0: 16,384, and for analyze of large models on a CPU fewer.",
  lower_bound=0,
)
_SEQ_LEN = flags.DEFINE_integer(
  "seq_len",
  0,
  "Tokens in a row; 0: as many as in training, for --hf at most 1024, and fewer with few tokens.",
  lower_bound=0,
)


def load() -> list[TrainedModel]:
  """Returns the models of the command line, see `model_flags.load`."""
  return [dataclasses.replace(one, bos=BOS.value) for one in model_flags.load()]


def load_one() -> TrainedModel:
  """Returns the model of the command line.

  Raises:
    ValueError: there is none, there are several, or it cannot be loaded.
  """
  if len(CHECKPOINTS.value) + len(FOLDERS.value) > 1:
    raise ValueError("several models; give one --checkpoint or one --hf")
  return load()[0]


def read_text(
  model: TrainedModel, sizes: Callable[..., tuple[int, int]] = lambda model, *sizes: sizes
) -> MeasuredText:
  """Returns the text of --data, encoded with the tokenizer of a model.

  Args:
    model: the model.
    sizes: returns the most tokens and the length of rows to take, given the model and those of the
      flags, where 0 stands for a default.

  Raises:
    ValueError: there is no text, or less than two tokens of it.
  """
  data = _DATA.value or next(iter(CHECKPOINTS.value), None)
  if data is None:
    raise ValueError("no text; give --data a file, a folder, the folder of a run, or python-stdlib")
  tokens, seq_len = sizes(model, _TOKENS.value, _SEQ_LEN.value)
  return loading.read_text(
    model,
    data,
    max_tokens=tokens or loading.MOST_TOKENS,
    batch_size=BATCH_SIZE.value,
    seq_len=seq_len,
    form=_FORMAT.value,
    field=_FIELD.value,
  )
