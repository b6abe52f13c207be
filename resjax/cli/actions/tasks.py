"""Tasks by their names: tasks of resjax, CORE, and tasks of lm-evaluation-harness."""

import dataclasses
import importlib.util
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from resjax.base import Location, locations
from resjax.study import TrainedModel
from resjax.study.evaluation import CONVENTIONS, core

CORE = "core"  # the task set of DCLM and nanochat
_LAMBADAS = "lambada_openai (cased, with punctuation) or lambada_standard (lower-case, tokenised)"

TaskResults = list[dict[str, Any]]  # in the form of the harness, one for each model


class Tasks(NamedTuple):
  """The tasks of an evaluation, by kind.

  Attributes:
    texts: texts of resjax, as NAME=PLACE.
    bundle: the folder of CORE; None: without CORE.
    harness: the names of tasks of lm-evaluation-harness.
    folder: the folder with further tasks of the harness; None: there is none.
  """

  texts: Sequence[str]
  bundle: Location | None
  harness: Sequence[str]
  folder: str | None


def find(names: Sequence[str], tasks_folder: str | None) -> Tasks:
  """Returns where tasks and their data are.

  Raises:
    ValueError: a task is ambiguous, its data are not there, or the harness is not installed.
  """
  own, others = [], []
  bundle: Location | None = None
  folder = locations.path(tasks_folder, "--tasks_folder") if tasks_folder else None
  for name in names:
    if name == "lambada":
      raise ValueError(
        f"--tasks={name}: there are two LAMBADAs, whose figures differ; name {_LAMBADAS}"
      )
    places = [] if not folder else _places(folder, name)
    if name == CORE:
      bundle = _bundle(folder)
    elif name in CONVENTIONS and places:
      own.append(f"{name}={places[0]}")
    else:
      others.append(name)
  if others and importlib.util.find_spec("lm_eval") is None:
    ours = [name for name in others if name in CONVENTIONS]
    data = f", or put the data of {ours[0]} into --tasks_folder as {ours[0]}" if ours else ""
    raise ValueError(
      f"--tasks={','.join(others)}: lm-evaluation-harness is not installed: "
      f"pip install 'resjax[eval]'{data}"
    )
  return Tasks(own, bundle, others, tasks_folder)


def _bundle(folder: Location | None) -> Location:
  """Returns the folder of the data of CORE: --tasks_folder itself, or eval_bundle in it."""
  for place in [folder, folder / "eval_bundle"] if folder else []:
    if (place / "core.yaml").exists():
      return place
  raise ValueError(
    f"--tasks={CORE} needs its folder eval_bundle, with core.yaml, in --tasks_folder"
    + (f"={folder}" if folder else ", which is not given")
  )


def _places(folder: Location, name: str) -> list[Location]:
  """Returns the files and folders in a folder that have a name, whatever their endings."""
  if not folder.is_dir():
    raise ValueError(f"--tasks_folder={folder} is no folder")
  found = sorted(folder.iterdir(), key=str)
  return [p for p in found if p.name.split(".")[0] == name and p.suffix not in (".yaml", ".yml")]


def run_core(model: TrainedModel, bundle: Location, *, batch_size: int, limit: int) -> TaskResults:
  """Returns CORE and its tasks in process 0; nothing in the others."""
  found = core.core(model, str(bundle), batch_size=batch_size, limit=limit or None)
  if found is None:
    return []
  parts = {
    f"{CORE}/{label}": {"centered,none": one.centered, "centered_stderr,none": one.stderr}
    for label, one in found.tasks.items()
  }
  whole = {CORE: {"centered,none": found.core, "centered_stderr,none": found.stderr}}
  details = {label: dataclasses.asdict(one) for label, one in found.tasks.items()}
  return [{"model": model.name, "results": whole | parts, "tasks": details}]


def run_harness(model: TrainedModel, tasks: Tasks, **settings: Any) -> TaskResults:
  """Returns what lm-evaluation-harness finds in process 0; nothing in the others.

  Args:
    model: the model.
    tasks: the tasks.
    settings: further arguments of `resjax.interop.lm_eval.run_tasks`.
  """
  from resjax.interop.lm_eval import run_tasks

  # Its warnings are about the defaults of its own tasks, some for each of their metrics.
  logging.getLogger("lm_eval").setLevel(logging.ERROR)
  found = run_tasks(model, tasks.harness, tasks_folder=tasks.folder, **settings)
  if found is None:
    return []
  kept = ("results", "groups", "versions", "n-shot", "n-samples", "counts")
  return [{"model": model.name} | {key: found[key] for key in kept if key in found}]
