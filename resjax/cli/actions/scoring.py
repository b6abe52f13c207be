"""Scores models on texts and tasks, and compares them with the first one."""

import dataclasses
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from absl import logging
from rich.console import Console

from resjax.base import Location, locations, terminal, typed_json
from resjax.cli.actions import scores_table, tasks
from resjax.cli.actions.tasks import TaskResults, Tasks
from resjax.study import TrainedModel, config_tree
from resjax.study.evaluation import (
  LAST_WORD,
  Corpus,
  Estimate,
  Measured,
  Report,
  measure,
  record,
  summarise,
)
from resjax.train.runs import environment

_PACKAGES = ("resjax", "jax", "jaxlib", "flax", "tokenizers", "numpy", "lm_eval")


@dataclasses.dataclass(frozen=True)
class ScoringConfig:
  """How models are scored.

  Attributes:
    max_length: the most inputs of a row; 0: as many as in training, of a pretrained model at most
      1024.
    strides: by how many tokens windows advance, one or several numbers; 0: by max_length, disjoint.
    bos: whether contexts begin with the token that begins texts, see `prefix.RULES`.
    batch_size: the number of rows at a time.
    limit: at most this many documents of each text and task; 0: all.
    num_fewshot: examples before each question of the harness; None: as tasks say.
    apply_chat_template: whether questions of the harness are put as chats.
  """

  max_length: int = 0
  strides: Sequence[int] = (0,)
  bos: str = "auto"
  batch_size: int = 8
  limit: int = 0
  num_fewshot: int | None = None
  apply_chat_template: bool = False


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
  """What models make of texts and tasks.

  Attributes:
    report: the figures of texts, their standard errors, and differences between models.
    models: the name of each model, and what tells it apart.
    tasks: results of CORE and of the harness, in the form of the latter.
    files: the files that were written.
  """

  report: Report
  models: Sequence[Mapping[str, Any]]
  tasks: TaskResults
  files: Sequence[Location] = ()

  def __getitem__(self, text: str) -> Mapping[str, Estimate]:
    """Returns the metrics of the first model on a text, by name, such as `bits_per_byte`."""
    first = self.models[0]["model"]
    found = {name: one for (model, name), one in self.report.figures.items() if model == first}
    if text not in found:
      raise KeyError(f"no text is called {text!r}; there are {', '.join(found)}")
    return found[text]

  def show(self, console: Console) -> None:
    """Prints the figures, and what stood in front of contexts."""
    scores_table.show(self.report, self.tasks, console)
    for one in self.models:
      text = f"{one['model']}: {one['prefix_text']} in front of contexts and streams"
      terminal.say(console, text)

  def __repr__(self) -> str:
    return terminal.text_of(self.show)


def score(
  loaders: Sequence[Callable[[], TrainedModel]],
  texts: Sequence[Corpus],
  asked: Tasks,
  config: ScoringConfig,
  status: Callable[[str], None] = lambda doing: None,
) -> Evaluation:
  """Scores one model after another, so that one alone is in memory.

  Args:
    loaders: return the models, with the first of which the others are compared.
    texts: the texts.
    asked: the tasks; those that are texts of resjax are in `texts`.
    config: how models are scored.
    status: is called with what is being done, in words.

  Raises:
    ValueError: a model cannot be loaded, or a text or a size does not fit.
  """
  measured: list[Measured] = []
  models: list[Mapping[str, Any]] = []
  results: TaskResults = []
  for load in loaders:
    status("loading a model")
    model = load().renamed([one["model"] for one in models])
    seq_len = config.max_length or model.seq_len
    model = dataclasses.replace(model, seq_len=seq_len, bos=config.bos)
    models.append(record.describe(model))
    measured += _measure(model, texts, config, status)
    if asked.bundle:
      status(f"{model.name}: {tasks.CORE}")
      sizes = {"batch_size": config.batch_size, "limit": config.limit}
      results += tasks.run_core(model, asked.bundle, **sizes)
    if asked.harness:
      status(f"{model.name}: {', '.join(asked.harness)}")
      results += tasks.run_harness(
        model,
        asked,
        num_fewshot=config.num_fewshot,
        limit=config.limit or None,
        batch_size=config.batch_size,
        apply_chat_template=config.apply_chat_template,
      )
  return Evaluation(summarise(measured), models, results)


def write(
  found: Evaluation, out: Location, settings: Mapping[str, Any], curves: Sequence[str] = ()
) -> Evaluation:
  """Writes results.json, samples.parquet and a plot into a folder; returns them as `files`.

  Args:
    found: what was found.
    out: the folder, which exists.
    settings: what was asked for, for the record.
    curves: the paths of the checkpoints that the first models are, to draw over their steps; none:
      nothing is drawn.
  """
  report, models = found.report, found.models
  if changed := _other_settings(out / record.RESULTS, settings):
    logging.warning(
      "%s had results of other settings, which are replaced: %s; another --out keeps both",
      out / record.RESULTS,
      "; ".join(changed),
    )
  content = record.to_json(report, models, {**settings, **_environment()}, found.tasks)
  locations.write_text(out / record.RESULTS, content)
  record.write_samples(report.measured, out / record.SAMPLES)
  files = [out / record.RESULTS, out / record.SAMPLES]
  if curves and report.measured:
    files.append(out / "checkpoints.png")
    _draw(report, curves, files[-1])
  return dataclasses.replace(found, files=files)


def _other_settings(place: Location, settings: Mapping[str, Any]) -> list[str]:
  """Returns in words which settings of results that lie in a file are not these."""
  try:
    old = typed_json.read(place, dict[str, Any])["settings"]
    was = config_tree.flat({key: old.get(key) for key in settings})
  except (OSError, LookupError, AttributeError, ValueError):  # no results, or none that can be read
    return []
  now = config_tree.flat(json.loads(json.dumps(settings, default=str)))
  names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
  return [f"{name} was {was.get(name)!r} and is {now.get(name)!r}" for name in names]


def _measure(
  model: TrainedModel, texts: Sequence[Corpus], config: ScoringConfig, status: Callable[[str], None]
) -> list[Measured]:
  """Returns the measurements of a model on texts, once for each stride."""
  found: list[Measured] = []
  for number, stride in enumerate(config.strides):
    found += measure(
      model,
      _again(texts, stride) if number else texts,
      stride=stride or None,
      batch_size=config.batch_size,
      limit=config.limit,
      progress=lambda text, tokens: status(f"{model.name}: {text}, {tokens:,} tokens"),
    )
  return found


def _again(texts: Sequence[Corpus], stride: int) -> list[Corpus]:
  """Returns texts under names for another stride, without those that have no windows."""
  end = f", stride {stride or 'max_length'}"
  return [
    dataclasses.replace(one, name=one.name + end, group=one.group and one.group + end)
    for one in texts
    if one.rule.kind != LAST_WORD
  ]


def _environment() -> dict[str, Any]:
  """Returns versions, devices and the time, for the record."""
  versions = {name: environment.package_version(name) for name in _PACKAGES}
  return {
    "versions": versions | {"python": platform.python_version()},
    "devices": [jax.device_count(), jax.devices()[0].device_kind],
    "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
  }


def _draw(report: Report, paths: Sequence[str], place: Location) -> None:
  """Draws the first metric of each text over the steps of each run."""
  from resjax.study.analysis import plots  # Matplotlib takes a second, and nothing else needs it.

  names = list(dict.fromkeys(model for model, _ in report.figures))
  panels: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
  for (model, text), metrics in report.figures.items():
    index = names.index(model)
    if index < len(paths):  # other models stand behind them, and have no steps
      run, _, step = paths[index].rpartition("/checkpoints/")
      name, found = next(iter(metrics.items()))
      curves = panels.setdefault(f"{text}: {name.replace('_', ' ')}", {})
      curves.setdefault(run, []).append((float(step), found.value, found.stderr or 0.0))
  plots.save(plots.score_curves(panels), place)
