"""Reads trained models, and the texts that they are measured on."""

import dataclasses
import os
from collections.abc import Collection, Iterable

from resjax.base import locations
from resjax.base.sharding import Layout
from resjax.data import CorpusConfig, MeasuredText, SettingNames, eval_text, model_files
from resjax.interop import huggingface
from resjax.study import TrainedModel
from resjax.train import experiment
from resjax.train.runs import restore, workdir

_SETTINGS = SettingNames("--data", "--data_format", "--data_field")
MOST_TOKENS = 16384  # of a text that is measured, by default
_USUAL_ROW = 1024  # tokens in a row, although pretrained models may take far longer rows


def from_workdir(
  path: str, layout: Layout | None = None, setting: str = "--checkpoint"
) -> TrainedModel:
  """Returns the model that a run trained.

  Args:
    path: a workdir, which stands for its newest checkpoint, or a checkpoint in one.
    layout: says where the parameters go; default: all devices, by the rules of the run.
    setting: the name of the setting that holds the path, for messages.

  Raises:
    ValueError: there is no checkpoint, or it is damaged.
  """

  def read(saved: restore.Saved) -> TrainedModel:
    return restore.restore_model(experiment.load(str(saved.workdir), layout), saved)

  return restore.read_newest(path, setting, read)


def from_huggingface(
  path: str | os.PathLike, layout: Layout | None = None, ignore: Collection[str] = ()
) -> TrainedModel:
  """Returns a pretrained model.

  Args:
    path: its folder, its GGUF file, or its name on the hub, see `model_files.find`.
    layout: says where the parameters go; default: the first device.
    ignore: the names of settings of config.json that are not known, and harmless.

  Raises:
    ValueError: a file is missing or damaged, or resjax does not know the architecture.
  """
  files = model_files.find(path)
  tokenizer = huggingface.tokenizer(files)
  decoder = huggingface.load(files, layout=layout, ignore=ignore)
  seq_len = min(decoder.config.max_positions, _USUAL_ROW)
  return TrainedModel(files.name, decoder, tokenizer, seq_len, pretrained=True)


def read_text(
  model: TrainedModel,
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
    model: the model that is to be measured.
    data: the workdir of a run or a checkpoint in it, for the validation split of its corpora
      (documents in random but fixed order); or `python-stdlib`, a file, folder or glob of text,
      JSON or Parquet, or tfds:NAME[/CONFIG].
    max_tokens: the text ends after this many targets.
    batch_size: the number of rows at a time, which is raised to a multiple of what its devices
      share.
    seq_len: T; 0: that of the model.
    form: the format of files, one of `resjax.data.config.FORMATS`.
    field: the field of JSON objects, the column of Parquet, or the feature of a TFDS builder.

  Raises:
    ValueError: there is no text, or it has less than two tokens.
  """
  seq_len = seq_len or model.seq_len
  _check_length(model, seq_len)
  shards = model.decoder.layout.num_shards("batch")
  place = locations.path(data, "--data")
  if (place / "params").is_dir():  # a checkpoint stands for its run, not for the text of its files
    place = restore.find(data, "--data").workdir
  if (place / workdir.RECORD).exists():
    name, texts = f"{place.name}, validation", _texts_of_run(str(place), model.decoder.layout)
  else:
    name = data
    texts = eval_text.texts_of_source(CorpusConfig(data, form, field), _SETTINGS)
  text = eval_text.measured_text(
    name,
    texts,
    model.tokenizer,
    seq_len=seq_len,
    batch_size=-(-batch_size // shards) * shards,
    max_tokens=max_tokens,
    around=model.around,
  )
  return dataclasses.replace(text, prefix=model.prefix_in_words)


def _check_length(model: TrainedModel, seq_len: int) -> None:
  config, shards = model.decoder.config, model.decoder.layout.num_shards("tokens")
  if config.positions == "learned" and seq_len > config.max_positions:
    raise ValueError(
      f"rows of {seq_len} tokens are longer than the {config.max_positions} learned positions of "
      f"{model.name}; set --seq_len to at most that"
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
