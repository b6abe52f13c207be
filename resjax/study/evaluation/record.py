"""The files of an evaluation: results.json with all figures, samples.parquet with documents."""

import dataclasses
import hashlib
import json
import math
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from resjax.base import Location, locations
from resjax.data import Tokenizer, prefix
from resjax.study.evaluation.estimates import COLUMNS
from resjax.study.evaluation.texts import Measured, Report
from resjax.study.trained_model import TrainedModel

RESULTS, SAMPLES = "results.json", "samples.parquet"
_SUMS = ("units", "tokens", "bytes", "words")


def describe(model: TrainedModel) -> dict[str, Any]:
  """Returns what tells a model apart: its sizes, and hashes of its settings and its tokenizer."""
  front = model.context_prefix
  config = json.dumps(dataclasses.asdict(model.decoder.config), sort_keys=True, default=str)
  return {
    "model": model.name,
    "residual": model.decoder.config.residual.name,
    "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
    "tokenizer_sha256": _tokenizer_digest(model.tokenizer),
    "max_length": model.seq_len,
    "bos": bool(front),
    "prefix": list(front),
    "prefix_text": prefix.spelled(model.tokenizer, front),
  }


def _tokenizer_digest(tokenizer: Tokenizer) -> str:
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "tokenizer.json"
    tokenizer.save(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def to_json(
  report: Report,
  models: Sequence[Mapping[str, Any]],
  settings: Mapping[str, Any],
  tasks: Sequence[Mapping[str, Any]] = (),
) -> str:
  """Returns all figures as JSON, in which a number that is not finite is null.

  Args:
    report: the figures.
    models: the result of `describe` for each model.
    settings: the settings of the command, and versions.
    tasks: results of the harness, a value for each model.
  """
  groups = [key for key in report.figures if key not in {_key(one) for one in report.measured}]
  found = {
    "settings": settings,
    "models": models,
    "texts": [_text(one, report) for one in report.measured],
    "macro_averages": [
      {"model": model, "group": group, "metrics": _metrics(report.figures[model, group])}
      for model, group in groups
    ],
    "differences": [
      {"model": model, "reference": models[0]["model"], "text": text, "metrics": _metrics(values)}
      for (model, text), values in report.differences.items()
    ],
    "tasks": list(tasks),
  }
  return json.dumps(_finite(found), indent=1, default=str) + "\n"


def _key(one: Measured) -> tuple[str, str]:
  return one.model, one.corpus.name


def _text(one: Measured, report: Report) -> dict[str, Any]:
  counts = {name: int(one.sums(name)) for name in _SUMS}
  return {
    "model": one.model,
    "text": one.corpus.name,
    "convention": one.corpus.convention,
    "says": one.corpus.rule.says,
    "source": one.corpus.place,
    "split": one.corpus.split,
    "group": one.corpus.group,
    "data_digest": one.digest,
    "max_length": one.cut.max_length,
    "stride": one.cut.stride,
    "counts": counts | {"merged": one.merged, "lossy": one.lossy},
    "nats": one.sums("nats"),
    "metrics": _metrics(report.figures[_key(one)]),
    "loss_by_position": one.loss_by_position(),
  }


def _metrics(values: Mapping[str, Any]) -> dict[str, Any]:
  return {name: dataclasses.asdict(value) for name, value in values.items()}


def _finite(value: Any) -> Any:
  """Returns JSON values without infinities and NaN, which JSON does not have."""
  if isinstance(value, Mapping):
    return {str(key): _finite(one) for key, one in value.items()}
  if isinstance(value, list | tuple):
    return [_finite(one) for one in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def write_samples(measured: Sequence[Measured], path: Location) -> None:
  """Writes a row for each document, or window of a stream, of each model.

  Raises:
    OSError: the file could not be written.
  """
  import pyarrow as pa
  import pyarrow.parquet as pq

  columns: dict[str, list] = {name: [] for name in ("model", "text", "id", "log_likelihood")}
  columns |= {name: [] for name in ("greedy", "tokens", "bytes", "words")}
  for one in measured:
    count = len(one.ids)
    columns["model"] += [one.model] * count
    columns["text"] += [one.corpus.name] * count
    columns["id"] += one.ids
    columns["log_likelihood"] += (-one.table[:, COLUMNS.index("nats")]).tolist()
    columns["greedy"] += (one.table[:, COLUMNS.index("right")] > 0).tolist()
    for name in ("tokens", "bytes", "words"):
      columns[name] += one.table[:, COLUMNS.index(name)].astype("int64").tolist()
  buffer = pa.BufferOutputStream()
  pq.write_table(pa.table(columns), buffer)
  locations.write_bytes(path, buffer.getvalue().to_pybytes())
