"""Trained models with all that is needed to measure them, and the text to measure them on."""

import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Collection, Iterable

import numpy as np
from flax import nnx

from resjax import experiment, locations
from resjax.checkpoint import checksums
from resjax.data import eval_text, prefix
from resjax.data.config import CorpusConfig, SettingNames
from resjax.data.eval_text import MeasuredText
from resjax.data.special_tokens import Around
from resjax.data.tokenizer import Tokenizer
from resjax.interop import huggingface
from resjax.models.decoder import Decoder
from resjax.runs import restore, workdir
from resjax.sharding import Layout

_SETTINGS = SettingNames("--data", "--data_format", "--data_field")
_USUAL_ROW = 1024  # tokens in a row, although pretrained models may take far longer rows


@dataclasses.dataclass(frozen=True)
class Subject:
  """A trained decoder that is measured, and its tokenizer.

  Attributes:
    name: the name of the model, for titles.
    decoder: the decoder with its parameters.
    tokenizer: the tokenizer that it was trained with; the embedding may have more rows than this
      has tokens.
    seq_len: T of the rows that the model was trained on, or is usually measured on.
    around: the tokens around each text; None: texts are packed as in training, with the `documents`
      of the tokenizer around each. Some pretrained models (Gemma) give poor predictions without
      what their tokenizer puts in front.

  Raises:
    ValueError: the tokenizer has more tokens than the embedding has rows.
  """

  name: str
  decoder: Decoder
  tokenizer: Tokenizer
  seq_len: int
  around: Around | None = None

  @property
  def prefix(self) -> tuple[int, ...]:
    """The tokens in front of each text."""
    return (self.around or self.tokenizer.documents).before

  @property
  def prefix_in_words(self) -> str:
    """What stands in front of texts, and why, in a line."""
    front = prefix.spelled(self.tokenizer, self.prefix)
    by_itself = None if self.around is None else prefix.by_rule(self.tokenizer).before
    why = {None: "as in training", self.prefix: "as its tokenizer's rules say"}
    return f"{self.name}: {front} in front of texts, {why.get(by_itself, 'as --bos says')}"

  def prompt(self, text: str) -> np.ndarray:
    """Returns the tokens of a text behind those in front of it, int32."""
    tokens = self.tokenizer.encode_batch([text])[0]
    return np.concatenate([np.array(self.prefix, np.int32), tokens])

  def with_bos(self, rule: str) -> "Subject":
    """Returns the model with another rule for what stands in front of texts, see `prefix.RULES`.

    Raises:
      ValueError: the rule is unknown.
    """
    found = prefix.by_rule(self.tokenizer, rule)
    same = rule == "auto" or (rule == "always" and self.prefix)
    return self if same else dataclasses.replace(self, around=found)

  def __post_init__(self) -> None:
    known, rows = self.tokenizer.vocab_size, self.decoder.config.vocab_size
    if known > rows:
      raise ValueError(
        f"the tokenizer of {self.name} has {known} tokens, its embedding {rows} rows; give the "
        "tokenizer that the model was trained with"
      )


def free_name(name: str, taken: Collection[str]) -> str:
  """Returns the name of a model, with a number behind it where another one has the name."""
  numbered = (f"{name} ({number})" for number in itertools.count(2))
  return next(one for one in itertools.chain([name], numbered) if one not in taken)


def fingerprint(decoder: Decoder) -> str:
  """Returns 64 hex digits of all parameters of a decoder, the same for any sharding."""
  record = json.dumps(checksums.record(nnx.to_pure_dict(nnx.state(decoder))), sort_keys=True)
  return hashlib.sha256(record.encode()).hexdigest()


def from_workdir(path: str, layout: Layout | None = None, knob: str = "--checkpoint") -> Subject:
  """Returns the model that a run trained.

  Args:
    path: a workdir, which stands for its newest checkpoint, or a checkpoint in one.
    layout: says where the parameters go; default: all devices, by the rules of the run.
    knob: the name of the setting that holds the path, for messages.

  Raises:
    ValueError: there is no checkpoint, or it is damaged.
  """

  def read(saved: restore.Saved) -> Subject:
    run = experiment.load(str(saved.workdir), layout)
    model, params, tokenizer = restore.restore_model(run, saved)
    return Subject(saved.title, model.bind(params), tokenizer, run.data.seq_len)

  return restore.read_newest(path, knob, read)


def from_huggingface(
  path: str, layout: Layout | None = None, ignore: Collection[str] = ()
) -> Subject:
  """Returns the model of a Hugging Face folder.

  Args:
    path: a folder with config.json, safetensors and tokenizer.json.
    layout: says where the parameters go; default: the first device.
    ignore: the names of settings of config.json that are not known, and harmless.

  Raises:
    ValueError: a file is missing or damaged, or resjax does not know the architecture.
  """
  tokenizer = huggingface.tokenizer(path)
  decoder = huggingface.load(path, layout=layout, ignore=ignore)
  name = pathlib.Path(path).absolute().name
  seq_len = min(decoder.config.max_positions, _USUAL_ROW)
  return Subject(name, decoder, tokenizer, seq_len, prefix.by_rule(tokenizer))


def read_text(
  subject: Subject,
  data: str,
  *,
  max_tokens: int,
  batch_size: int = 8,
  seq_len: int = 0,
  form: str = "auto",
  field: str = "text",
) -> MeasuredText:
  """Returns the first tokens of a corpus, as the tokenizer of a model cuts it.

  Args:
    subject: the model that is to be measured.
    data: the workdir of a run or a checkpoint in it, for the validation split of its corpora
      (documents in random but fixed order); or `python-stdlib`, a file, folder or glob of text,
      JSON or Parquet, or tfds:NAME[/CONFIG].
    max_tokens: the text ends after so many targets.
    batch_size: the number of rows at a time, which is raised to a multiple of what the devices of
      the subject share.
    seq_len: T; 0: that of the subject.
    form: the format of files, one of `resjax.data.config.FORMATS`.
    field: the field of JSON objects, the column of Parquet, or the feature of a TFDS builder.

  Raises:
    ValueError: there is no text, or it has less than two tokens.
  """
  seq_len = seq_len or subject.seq_len
  _check_length(subject, seq_len)
  shards = subject.decoder.layout.num_shards("batch")
  place = locations.path(data, "--data")
  if (place / "params").is_dir():  # a checkpoint stands for its run, not for the text of its files
    place = restore.find(data, "--data").workdir
  if (place / workdir.RECORD).exists():
    name, texts = f"{place.name}, validation", _texts_of_run(str(place), subject.decoder.layout)
  else:
    name = data
    texts = eval_text.texts_of_source(CorpusConfig(data, form, field), _SETTINGS)
  text = eval_text.measured_text(
    name,
    texts,
    subject.tokenizer,
    seq_len=seq_len,
    batch_size=-(-batch_size // shards) * shards,
    max_tokens=max_tokens,
    around=subject.around,
  )
  return dataclasses.replace(text, prefix=subject.prefix_in_words)


def _check_length(subject: Subject, seq_len: int) -> None:
  config, shards = subject.decoder.config, subject.decoder.layout.num_shards("tokens")
  if config.positions == "learned" and seq_len > config.max_positions:
    raise ValueError(
      f"rows of {seq_len} tokens are longer than the {config.max_positions} learned positions of "
      f"{subject.name}; set --seq_len to at most that"
    )
  if seq_len % shards:
    raise ValueError(
      f"rows of {seq_len} tokens do not divide over the {shards} devices that share a row; set "
      "--seq_len to a multiple"
    )


def _texts_of_run(folder: str, layout: Layout) -> Iterable[str]:
  """Returns the documents of the validation split of a run's corpora."""
  run, record = experiment.load(folder, layout), workdir.read(workdir.place(folder))
  texts = eval_text.texts_of_dataset(run.data, record.data_fingerprint, "validation")
  if texts is None:
    raise ValueError(
      f"the corpora of {folder} are not under config.data.root={run.data.root!r} of that run, "
      "where they were built; run from the folder that it was trained from, or give --data a text"
    )
  return texts
