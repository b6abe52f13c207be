"""Runs tasks of lm-evaluation-harness on a model."""

import contextlib
import dataclasses
import os
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lm_eval
import yaml
from lm_eval.tasks import TaskManager

from resjax.interop.lm_eval import language_model
from resjax.interop.lm_eval.language_model import LanguageModel
from resjax.study import TrainedModel


def run_tasks(
  model: TrainedModel,
  tasks: Sequence[str | dict[str, Any]],
  *,
  tasks_folder: str | os.PathLike | None = None,
  num_fewshot: int | None = None,
  limit: float | None = None,
  batch_size: int = 8,
  apply_chat_template: bool | str = False,
  bootstrap_iters: int = 1000,
  seed: int = 1234,
) -> dict[str, Any] | None:
  """Returns the results of lm-evaluation-harness for some tasks.

  In several processes all of them call this with the same arguments; process 0 alone runs the
  harness and reads data sets, and the others take part in its computations.

  Args:
    model: the model; its `seq_len` is the most tokens of a row, and its `bos` says whether texts
      begin with the token that begins a text.
    tasks: the names of tasks or groups, or the settings of tasks.
    tasks_folder: a folder of further tasks (YAML).
    num_fewshot: the number of examples before each question; None: as each task says.
    limit: the number of documents of each task, or their share if below 1; None: all.
    batch_size: the number of rows of `seq_len` tokens that run at a time.
    apply_chat_template: whether questions are put as chats, or the name of the template for it.
    bootstrap_iters: the number of resamples behind standard errors that have no formula.
    seed: the seed of the choice of examples.

  Returns:
    What `lm_eval.simple_evaluate` returns (`results`, `samples`, `configs`, `versions`, ...), with
    what was counted under `counts`; None in all processes but the first.

  Raises:
    ValueError: a task is unknown, its data are not at hand, or an argument is out of range.
  """
  harness = LanguageModel(model, batch_size=batch_size)
  if apply_chat_template:
    harness.chat_template(apply_chat_template)  # a missing one is named before any data are read
    harness.template = apply_chat_template if isinstance(apply_chat_template, str) else None
  options = {
    "tasks": list(tasks),
    "num_fewshot": num_fewshot,
    "limit": limit,
    "batch_size": batch_size,
    "apply_chat_template": apply_chat_template,
    "bootstrap_iters": bootstrap_iters,
  }
  options |= dict.fromkeys(("random_seed", "numpy_random_seed", "fewshot_random_seed"), seed)
  return harness.lockstep.lead(lambda: _evaluated(harness, tasks_folder, options))


def _evaluated(
  harness: LanguageModel, folder: str | os.PathLike | None, options: dict[str, Any]
) -> dict[str, Any]:
  """Returns the results of the harness, with counts."""
  manager = _manager(options["tasks"], folder)
  # The harness would fork this process for its bootstrap, which JAX's threads do not survive.
  os.environ["DISABLE_MULTIPROC"] = "1"
  with _naming_files(manager, options["tasks"]):
    results = lm_eval.simple_evaluate(
      model=harness, task_manager=manager, torch_random_seed=None, **options
    )
  programs = len(harness.scorer.programs) + len(harness.generator.programs)
  return results | {"counts": dataclasses.asdict(harness.counts) | {"programs": programs}}


def _manager(
  tasks: Sequence[str | dict[str, Any]], folder: str | os.PathLike | None
) -> TaskManager:
  """Returns a manager of the tasks in the folder if all are there, else of all tasks.

  Raises:
    ValueError: a name is unknown.
  """
  names = [task for task in tasks if isinstance(task, str)]
  path = None if folder is None else os.fspath(folder)
  # The harness takes seconds to look through its own 14,000 tasks.
  manager = TaskManager(include_path=path, include_defaults=False)
  if not set(names) <= set(manager.all_tasks):
    manager = TaskManager(include_path=path)
  unknown = [name for name in names if name not in manager.all_tasks]
  if unknown:
    for place in sorted(Path(path).rglob("*.yaml")) if path else []:
      _check_yaml(place)
    raise ValueError(
      f"{', '.join(unknown)}: no such task of lm-evaluation-harness; set --tasks to names that "
      "`lm-eval ls tasks` prints, or --tasks_folder to the folder of your own"
    )
  return manager


def _check_yaml(place: Path) -> None:
  """Raises ValueError if a file holds no YAML; the harness passes over it without a word."""
  try:
    list(yaml.parse(place.read_bytes(), Loader=yaml.SafeLoader))
  except yaml.MarkedYAMLError as error:
    line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
    raise ValueError(f"{place}{line} is no YAML: {error.problem}") from None
  except (yaml.YAMLError, ValueError) as error:
    raise ValueError(f"{place} is no YAML: {' '.join(str(error).split())}") from None


@contextlib.contextmanager
def _naming_files(manager: TaskManager, tasks: Sequence[str | dict[str, Any]]) -> Iterator[None]:
  """Turns errors in the files of tasks into a ValueError that names file and line.

  Errors of the model are not changed, nor errors that name a missing file themselves.
  """
  try:
    yield
  except (OSError, ValueError):
    raise
  except Exception as error:
    calls = traceback.extract_tb(error.__traceback__)
    if any(call.filename == language_model.__file__ for call in calls):
      raise
    entries = (manager.task_index.get(task) for task in tasks if isinstance(task, str))
    files = [entry.yaml_path for entry in entries if entry and entry.yaml_path]
    own = [
      f"{call.filename}:{call.lineno}"
      for call in calls
      if any(Path(call.filename).is_relative_to(file.parent.resolve()) for file in files)
    ]
    where = own[-1] if own else " or ".join(map(str, files)) or "a task"
    said = " ".join(str(error).split())
    raise ValueError(f"{where}: {type(error).__name__}: {said}") from error
