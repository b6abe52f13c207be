"""CORE: 22 tasks in few-shot form, read from a folder, and the mean of their centred accuracies."""

import csv
import dataclasses
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from resjax.base import Location, locations, typed_json
from resjax.data import Tokenizer
from resjax.study.evaluation.lockstep import Lockstep
from resjax.study.evaluation.scorer import Scored, Scorer
from resjax.study.trained_model import TrainedModel

_MOST_BYTES = 1 << 30  # of a file of questions
_SETTINGS, _BASELINES, _DATA = "core.yaml", "eval_meta_data.csv", "eval_data"
_ORDER_SEED, _EXAMPLES_SEED = 1337, 1234


@dataclasses.dataclass(frozen=True)
class _Question:
  """One line of a file of questions; which fields it has depends on the kind of its task."""

  query: str = ""
  choices: list[str] = dataclasses.field(default_factory=list)
  context: str = ""
  context_options: list[str] = dataclasses.field(default_factory=list)
  continuation: str = ""
  gold: int = 0


@dataclasses.dataclass(frozen=True)
class _Task:
  """A task of core.yaml."""

  label: str
  dataset_uri: str
  num_fewshot: list[int]
  icl_task_type: str
  continuation_delimiter: str = " "


@dataclasses.dataclass(frozen=True)
class _Tasks:
  """What core.yaml holds."""

  icl_tasks: list[_Task]


@dataclasses.dataclass(frozen=True)
class TaskResult:
  """The result of one task.

  Attributes:
    accuracy: the share of right answers.
    baseline: the share that guessing gets right.
    centered: (accuracy - baseline) / (1 - baseline).
    stderr: the standard error of `centered`, from the number of questions alone.
    questions: the number of questions.
    num_fewshot: the number of examples before each question.
  """

  accuracy: float
  baseline: float
  centered: float
  stderr: float
  questions: int
  num_fewshot: int


@dataclasses.dataclass(frozen=True)
class CoreResult:
  """The result of all tasks.

  Attributes:
    core: the mean of the centred accuracies.
    stderr: its standard error, from the numbers of questions alone; the spread over seeds of
      training comes on top of it.
    tasks: the result of each task, by its label.
  """

  core: float
  stderr: float
  tasks: Mapping[str, TaskResult]


def core(
  model: TrainedModel,
  folder: str | os.PathLike,
  *,
  batch_size: int = 8,
  limit: int | None = None,
) -> CoreResult | None:
  """Returns CORE of a model.

  In several processes all of them call this with the same arguments; process 0 alone reads the
  folder.

  Args:
    model: the model; of a row longer than its `seq_len` the last tokens are taken.
    folder: a folder `eval_bundle` with core.yaml, eval_meta_data.csv and eval_data.
    batch_size: the number of rows of `seq_len` tokens that run at a time.
    limit: the number of questions of each task; None: all.

  Returns:
    The result; None in all processes but the first.

  Raises:
    ValueError: a file is missing, or damaged.

  Source: Li et al. 2024, arXiv:2406.11794. Order, examples and scoring equal nanochat's
  (core_eval.py), with which published figures can be compared.
  """
  scorer = Scorer(model.decoder, max_length=model.seq_len, batch_size=batch_size)

  def score(rows: Sequence[tuple[list[int], int]]) -> list[tuple[float, bool]]:
    found = scorer.score([Scored(*row) for row in rows])
    return [(s.log_prob / len(s.log_probs), bool(np.all(s.greedy))) for s in found]

  lockstep = Lockstep({"score": score})

  def work() -> CoreResult:
    place = locations.path(folder, "the folder of CORE")
    found = {}
    for task, questions, baseline in _read(place, limit):
      marks = _marks(task, questions, model, lambda r: lockstep.call("score", r))
      found[task.label] = _result(marks, baseline, task.num_fewshot[0])
    errors = [result.stderr for result in found.values()]
    mean = sum(result.centered for result in found.values()) / len(found)
    return CoreResult(mean, math.hypot(*errors) / len(found), found)

  return lockstep.lead(work)


def _result(marks: Sequence[bool], baseline: float, num_fewshot: int) -> TaskResult:
  count, right = len(marks), sum(marks) / len(marks)
  error = math.sqrt(right * (1 - right) / max(count - 1, 1))
  centered = (right - baseline) / (1 - baseline)
  return TaskResult(right, baseline, centered, error / (1 - baseline), count, num_fewshot)


def _marks(
  task: _Task,
  questions: Sequence[_Question],
  model: TrainedModel,
  score: Callable[[list[tuple[list[int], int]]], list[tuple[float, bool]]],
) -> list[bool]:
  """Returns whether the answer to each question is right.

  Of choices and of contexts that one is chosen which makes what follows most probable, per token;
  a continuation is right if each of its tokens is the most probable one.
  """
  rows: list[tuple[list[int], int]] = []
  counts = []
  for number in range(len(questions)):
    options = _rows(task, _prompts(task, questions, number), model.tokenizer)
    counts.append(len(options))
    for tokens, first in options:
      kept = tokens[-model.seq_len - 1 :]
      rows.append((kept, max(1, first - len(tokens) + len(kept))))
  answers = iter(score(rows))
  marks = []
  for question, count in zip(questions, counts, strict=True):
    own = [next(answers) for _ in range(count)]
    if task.icl_task_type == "language_modeling":
      marks.append(own[0][1])
    else:
      means = [mean for mean, _ in own]
      marks.append(means.index(max(means)) == question.gold)
  return marks


def _prompts(task: _Task, questions: Sequence[_Question], number: int) -> list[str]:
  """Returns the texts of a question, examples in front; of language modelling without and with."""
  others = [n for n in range(len(questions)) if n != number]
  wanted = min(task.num_fewshot[0], len(others))
  chosen = random.Random(_EXAMPLES_SEED + number).sample(others, wanted)
  answered = [_options(task, questions[n])[questions[n].gold] for n in chosen]
  before = "".join(f"{example}\n\n" for example in answered)
  own = [before + option for option in _options(task, questions[number])]
  if task.icl_task_type != "language_modeling":
    return own
  context = questions[number].context.strip() + task.continuation_delimiter
  return [(before + context).strip(), *own]


def _options(task: _Task, question: _Question) -> list[str]:
  """Returns a question with each of its answers."""
  between = task.continuation_delimiter
  match task.icl_task_type:
    case "multiple_choice":
      return [question.query + between + choice for choice in question.choices]
    case "schema":
      return [context + between + question.continuation for context in question.context_options]
    case _:
      return [question.context.strip() + between + question.continuation]


def _rows(task: _Task, prompts: list[str], tokenizer: Tokenizer) -> list[tuple[list[int], int]]:
  """Returns the tokens of each option, and the index of the first one that is scored.

  What all options have in common is not scored where it stands in front, and it alone is scored
  where it stands behind different contexts.
  """
  rows = [[tokenizer.eot_id, *map(int, ids)] for ids in tokenizer.encode_batch(prompts)]
  shortest = min(map(len, rows))
  if task.icl_task_type == "schema":
    common = _common([row[::-1] for row in rows])
    return [(row, len(row) - min(max(common, 1), shortest - 1)) for row in rows]
  first = min(_common(rows), shortest - 1)
  if task.icl_task_type == "language_modeling":
    whole = rows[1]
    return [(whole, min(_common(rows), len(whole) - 1))]
  return [(row, first) for row in rows]


def _common(rows: Sequence[Sequence[int]]) -> int:
  """Returns the number of first tokens that are the same in all rows."""
  pairs = enumerate(zip(*rows, strict=False))
  return next((n for n, tokens in pairs if len(set(tokens)) > 1), min(map(len, rows)))


def _read(folder: Location, limit: int | None) -> Iterator[tuple[_Task, list[_Question], float]]:
  """Yields each task, its questions in the order in which they are asked, and its baseline."""
  tasks = _tasks(folder / _SETTINGS)
  baselines = _baselines(folder / _BASELINES)
  for task in tasks:
    if task.label not in baselines:
      raise ValueError(f"{folder / _BASELINES} has no line for the task {task.label!r}")
    place = locations.inside(folder / _DATA, task.dataset_uri, f"dataset_uri of {task.label}")
    lines = _bytes(place).splitlines()
    questions = [
      typed_json.parse(line, _Question, f"{place}, line {number}")
      for number, line in enumerate(lines, 1)
      if line.strip()
    ]
    for number, question in enumerate(questions, 1):
      _check(task, question, f"{place}, question {number}")
    if not questions:
      raise ValueError(f"{place} holds no question")
    random.Random(_ORDER_SEED).shuffle(questions)
    yield task, questions[:limit], baselines[task.label]


def _tasks(place: Location) -> list[_Task]:
  try:
    settings = yaml.safe_load(_bytes(place))
  except yaml.YAMLError as error:
    problem = str(error).split("\n")[0]
    raise ValueError(f"{place} holds no YAML: {problem}") from None
  tasks = typed_json.convert(settings, _Tasks, str(place)).icl_tasks
  for task in tasks:
    if task.icl_task_type not in ("multiple_choice", "schema", "language_modeling"):
      raise ValueError(
        f"{place}: icl_task_type of {task.label} is {task.icl_task_type!r}; allowed: "
        "multiple_choice, schema, language_modeling"
      )
    if not task.num_fewshot or task.num_fewshot[0] < 0:
      raise ValueError(f"{place}: num_fewshot of {task.label} must be a list of one number, from 0")
  if not tasks:
    raise ValueError(f"{place} names no task")
  return tasks


def _baselines(place: Location) -> dict[str, float]:
  """Returns the share of right answers that guessing gives, by task."""
  rows = csv.DictReader(_bytes(place).decode(errors="replace").splitlines())
  try:
    found = {row["Eval Task"]: 0.01 * float(row["Random baseline"]) for row in rows}
  except (KeyError, TypeError, ValueError):
    raise ValueError(
      f"{place} needs the columns 'Eval Task' and 'Random baseline', the latter in percent"
    ) from None
  for label, share in found.items():
    if not 0 <= share < 1:
      raise ValueError(
        f"{place}: 'Random baseline' of {label} is {100 * share:g}; it must be in percent, from 0 "
        "to below 100"
      )
  return found


def _bytes(place: Location) -> bytes:
  try:
    return locations.read_bytes(place, _MOST_BYTES)
  except FileNotFoundError:
    raise ValueError(
      f"{place} is missing; give the folder eval_bundle of CORE, which has {_SETTINGS}, "
      f"{_BASELINES} and {_DATA}"
    ) from None


def _check(task: _Task, question: _Question, where: str) -> None:
  """Raises a ValueError if a question lacks what its kind of task needs."""
  options: Sequence[Any] = {
    "multiple_choice": question.choices,
    "schema": question.context_options,
  }.get(task.icl_task_type, ("",))
  if not 0 <= question.gold < len(options):
    raise ValueError(f"{where}: gold={question.gold} must be one of its {len(options)} options")
  if task.icl_task_type != "multiple_choice" and not question.continuation:
    raise ValueError(f"{where}: the continuation is empty or missing")
