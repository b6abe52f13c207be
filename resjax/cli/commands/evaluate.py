"""Scores trained models on texts and tasks: perplexities, bits per byte, accuracies.

  resjax evaluate --checkpoint=runs/tiny --text=licences=/usr/share/licenses
  resjax evaluate --checkpoint=runs/a --checkpoint=runs/b --out=runs/scores \\
    --text=wikitext=wikitext-2-raw-v1,web=fineweb@hash:0-0.02,paloma=domains:paloma
  resjax evaluate --hf=FOLDER --tasks=lambada_openai,hellaswag --tasks_folder=tasks
  resjax evaluate --checkpoint=runs/tiny --every_checkpoint --text=own=notes.txt

--text names each text as NAME=[CONVENTION:]SOURCE[@SPLIT]. Conventions are published ones;
docs/evaluation.md has the table. A task of resjax (wikitext, lambada_openai, ...) is such
a text, the file or folder of its name in --tasks_folder; core is CORE, whose folder eval_bundle is
there; all other tasks belong to lm-evaluation-harness, which the extra `eval` installs. Several
models are compared with the first one, document by document. The command writes results.json,
samples.parquet and, with --every_checkpoint, checkpoints.png into --out, and prints a table. The
same command in several processes scores together; see `resjax.base.processes.initialize`.
"""

import functools
from typing import Any

import jax
from absl import flags

from resjax.base import locations, processes, terminal
from resjax.cli import command, model_flags
from resjax.cli.actions import ScoringConfig, scoring, tasks
from resjax.cli.bos_flag import BOS
from resjax.data import FORMATS
from resjax.study.evaluation import corpora
from resjax.train.checkpoint import saved_steps

_OUT = flags.DEFINE_string("out", "runs/evaluation", "Folder to write figures to.")
_TEXT = flags.DEFINE_multi_string(
  "text", [], "Texts, NAME=[CONVENTION:]SOURCE[@SPLIT], with commas between them or each by itself."
)
_TASKS = flags.DEFINE_multi_string(
  "tasks", [], "Tasks, of resjax or of lm-evaluation-harness, with commas between them."
)
_TASKS_FOLDER = flags.DEFINE_string(
  "tasks_folder", None, "Folder with the data of tasks of resjax, and with further tasks (YAML)."
)
_FORMAT = flags.DEFINE_enum(
  "data_format", "auto", FORMATS, "Format of files; auto: by what they hold."
)
_FIELD = flags.DEFINE_string(
  "data_field", "", "Field, column or feature that holds the text; default: by the convention."
)
_MAX_LENGTH = flags.DEFINE_integer(
  "max_length",
  0,
  "Inputs of a row; 0: as many as in training, for --hf at most 1024.",
  lower_bound=0,
)
_STRIDES = flags.DEFINE_list(
  "stride", ["0"], "By how many tokens windows advance, one or several; 0: by max_length, disjoint."
)
_LIMIT = flags.DEFINE_integer(
  "limit", 0, "So many documents of each text and task; 0: all.", lower_bound=0
)
_FEWSHOT = flags.DEFINE_integer(
  "num_fewshot",
  None,
  "Examples before each question of the harness; default: as tasks say.",
  lower_bound=0,
)
_CHAT = flags.DEFINE_bool(
  "apply_chat_template", False, "Questions of the harness are put as chats."
)
_EVERY = flags.DEFINE_bool(
  "every_checkpoint", False, "All checkpoints of each --checkpoint, and a plot over them."
)


def main() -> None:
  """Scores the models of the command line and writes the results."""
  command.join()
  first = jax.process_index() == 0
  asked = tasks.find(_items(_TASKS), _TASKS_FOLDER.value)
  texts = corpora.parse([*_items(_TEXT), *asked.texts], _FORMAT.value, _FIELD.value)
  if not texts and not asked.harness and not asked.bundle:
    raise ValueError(
      "nothing to score; give --text=NAME=SOURCE or --tasks=NAME, for example "
      "--text=licences=/usr/share/licenses"
    )
  config = _config()
  paths = _all_checkpoints() if _EVERY.value else list(model_flags.CHECKPOINTS.value)
  loaders = model_flags.loaders(paths)
  out = locations.path(_OUT.value, "--out", writable=True)
  if first:
    locations.make_folder(out, "--out")
  with terminal.status(quiet=not first) as status:
    found = scoring.score(loaders, texts, asked, config, status)
  if first:
    found = scoring.write(found, out, _settings(), paths if _EVERY.value else ())
    found.show(terminal.console())
    for file in found.files:
      print(file)
  processes.shutdown()


def _config() -> ScoringConfig:
  return ScoringConfig(
    _MAX_LENGTH.value,
    _strides(),
    BOS.value,
    model_flags.BATCH_SIZE.value,
    _LIMIT.value,
    _FEWSHOT.value,
    _CHAT.value,
  )


def _items(flag: flags.FlagHolder) -> list[str]:
  """Returns the items of a flag that may be given several times, each time with several items."""
  return [item.strip() for value in flag.value for item in value.split(",") if item.strip()]


def _all_checkpoints() -> list[str]:
  """Returns all checkpoints of the runs of --checkpoint, each run's in order."""
  found = []
  for path in model_flags.CHECKPOINTS.value:
    folder = locations.path(path, "--checkpoint") / "checkpoints"
    steps = saved_steps(folder)
    if not steps:
      raise ValueError(
        f"--checkpoint={path!r} has no checkpoints; --every_checkpoint needs the folder of a run"
      )
    found += [f"{folder}/{step}" for step in steps]
  return found


def _strides() -> list[int]:
  """Returns the strides of --stride.

  Raises:
    ValueError: one is no whole number, or comes twice.
  """
  given = _STRIDES.value
  if not given or len(set(given)) < len(given) or not all(one.isdecimal() for one in given):
    raise ValueError(
      f"--stride={','.join(given)} must be whole numbers, each once, with commas between them"
    )
  return [int(one) for one in given]


def _settings() -> dict[str, Any]:
  """Returns the flags of the command that were given."""
  given = flags.FLAGS.flags_by_module_dict()
  ours = ("resjax.cli.commands.evaluate", "resjax.cli.model_flags")
  found = [flag for module in given if module in ours for flag in given[module] if flag.present]
  return {"flags": {flag.name: flag.value for flag in found}}


run = functools.partial(command.run, main)
