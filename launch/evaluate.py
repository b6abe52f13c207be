"""Scores trained models on texts and tasks: perplexities, bits per byte, accuracies.

  python -m launch.evaluate --checkpoint=runs/tiny --text=licences=/usr/share/licenses
  python -m launch.evaluate --checkpoint=runs/a --checkpoint=runs/b --out=runs/scores \\
    --text=wikitext=wikitext-2-raw-v1,web=fineweb@hash:0-0.02,paloma=domains:paloma
  python -m launch.evaluate --hf=FOLDER --tasks=lambada_openai,hellaswag --tasks_folder=tasks
  python -m launch.evaluate --checkpoint=runs/tiny --every_checkpoint --text=own=notes.txt

--text names each text as NAME=[CONVENTION:]SOURCE[@SPLIT]. Conventions are those of published
figures; docs/evaluation.md has the table. A task of resjax (wikitext, lambada_openai, ...) is such
a text, the file or folder of its name in --tasks_folder; core is CORE, whose folder eval_bundle is
there; all other tasks are those of lm-evaluation-harness, which the extra `eval` installs. Several
models are compared with the first one, document by document. The command writes results.json,
samples.parquet and, with --every_checkpoint, checkpoints.png into --out, and prints a table. The
same command in several processes scores together; see `resjax.processes.initialize`.
"""

import dataclasses
import importlib.metadata
import importlib.util
import logging
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
from absl import flags
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch import cli, subject_flags
from resjax import locations, processes, terminal
from resjax.checkpoint.reader import saved_steps
from resjax.data.config import FORMATS
from resjax.evaluation import core, corpora, record, start_token
from resjax.evaluation.conventions import CONVENTIONS, LAST_WORD, STREAM, TOKENS
from resjax.evaluation.corpora import Corpus
from resjax.evaluation.estimates import Difference
from resjax.evaluation.texts import Measured, Model, Report, measure, summarise
from resjax.locations import Location
from resjax.measured_models import Subject

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
  "data_format", "auto", FORMATS, "Format of files; auto: by their endings."
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
_BOS = flags.DEFINE_enum(
  "bos", "auto", start_token.RULES, "Whether contexts begin with the token that begins texts."
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

_CORE = "core"  # the task set of DCLM and nanochat
_LAMBADAS = "lambada_openai (cased, with punctuation) or lambada_standard (lower-case, tokenised)"
_SHOWN = ("bits_per_byte", "word_perplexity", "token_perplexity", "acc", "perplexity")
_COMPARED = ("bits_per_byte", "acc", "perplexity")
_PACKAGES = ("resjax", "jax", "jaxlib", "flax", "tokenizers", "numpy", "lm_eval")

Results = list[dict[str, Any]]
_Found = TypeVar("_Found")


def main() -> None:
  """Scores the models of the command line and writes what was found."""
  cli.join()
  first = jax.process_index() == 0
  own, bundle, others = _split_tasks()
  texts = corpora.parse([*_items(_TEXT), *own], _FORMAT.value, _FIELD.value)
  if not texts and not others and not bundle:
    raise ValueError(
      "nothing to score; give --text=NAME=SOURCE or --tasks=NAME, for example "
      "--text=licences=/usr/share/licenses"
    )
  paths = _all_checkpoints() if _EVERY.value else list(subject_flags.CHECKPOINTS.value)
  loaders = subject_flags.loaders(paths)
  out = locations.path(_OUT.value, "--out", writable=True)
  if first:
    locations.make_folder(out, "--out")
  measured, models, tasks = _score(loaders, texts, bundle, others)
  report = summarise(measured)
  if first:
    settings = _settings()
    locations.write_text(out / record.RESULTS, record.to_json(report, models, settings, tasks))
    record.write_samples(measured, out / record.SAMPLES)
    files = [record.RESULTS, record.SAMPLES]
    if _EVERY.value and measured:
      _draw(report, paths, out / "checkpoints.png")
      files.append("checkpoints.png")
    show(report, tasks, terminal.console())
    for name in files:
      print(out / name)
  processes.shutdown()


def _items(flag: flags.FlagHolder) -> list[str]:
  """Returns the items of a flag that may be given several times, each time with several items."""
  return [item.strip() for value in flag.value for item in value.split(",") if item.strip()]


def _split_tasks() -> tuple[list[str], Location | None, list[str]]:
  """Returns items of --text, the folder of CORE if it is asked for, and tasks of the harness.

  Raises:
    ValueError: a task is ambiguous, its data are not there, or the harness is not installed.
  """
  own, others = [], []
  bundle: Location | None = None
  folder = _TASKS_FOLDER.value and locations.path(_TASKS_FOLDER.value, "--tasks_folder")
  for name in _items(_TASKS):
    if name == "lambada":
      raise ValueError(
        f"--tasks={name}: there are two LAMBADAs, whose figures differ; name {_LAMBADAS}"
      )
    places = [] if not folder else _places(folder, name)
    if name == _CORE:
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
  return own, bundle, others


def _bundle(folder: Location | None) -> Location:
  """Returns the folder of the data of CORE: --tasks_folder itself, or eval_bundle in it."""
  for place in [folder, folder / "eval_bundle"] if folder else []:
    if (place / "core.yaml").exists():
      return place
  raise ValueError(
    f"--tasks={_CORE} needs its folder eval_bundle, with core.yaml, in --tasks_folder"
    + (f"={folder}" if folder else ", which is not given")
  )


def _places(folder: Location, name: str) -> list[Location]:
  """Returns the files and folders in a folder that have a name, whatever their endings."""
  if not folder.is_dir():
    raise ValueError(f"--tasks_folder={folder} is no folder")
  found = sorted(folder.iterdir(), key=str)
  return [p for p in found if p.name.split(".")[0] == name and p.suffix not in (".yaml", ".yml")]


def _all_checkpoints() -> list[str]:
  """Returns all checkpoints of the runs of --checkpoint, each run's in order."""
  found = []
  for path in subject_flags.CHECKPOINTS.value:
    folder = locations.path(path, "--checkpoint") / "checkpoints"
    steps = saved_steps(folder)
    if not steps:
      raise ValueError(
        f"--checkpoint={path!r} has no checkpoints; --every_checkpoint needs the folder of a run"
      )
    found += [f"{folder}/{step}" for step in steps]
  return found


def _score(
  loaders: Sequence[Callable[[], Subject]],
  texts: Sequence[Corpus],
  bundle: Location | None,
  others: Sequence[str],
) -> tuple[list[Measured], Results, Results]:
  """Scores one model after another, so that one alone is in memory.

  Returns:
    What was measured on texts, descriptions of the models, and results of tasks.
  """
  strides = _strides()
  console = terminal.console(stderr=True, quiet=jax.process_index() != 0)
  measured: list[Measured] = []
  models: Results = []
  tasks: Results = []
  for load in loaders:
    with console.status("loading a model") as status:
      subject = load()
      model = _model(subject, [one["model"] for one in models])
      models.append(record.describe(model))

      def tell(text: str, tokens: int, name: str = model.name) -> None:
        status.update(Text(f"{name}: {text}, {tokens:,} tokens"))

      for number, stride in enumerate(strides):
        measured += measure(
          model,
          _again(texts, stride) if number else texts,
          stride=stride or None,
          batch_size=subject_flags.BATCH_SIZE.value,
          limit=_LIMIT.value,
          progress=tell,
        )
      if bundle:
        status.update(Text(f"{model.name}: {_CORE}"))
        tasks += _run_core(model, bundle)
      if others:
        status.update(Text(f"{model.name}: {', '.join(others)}"))
        tasks += _run_harness(model, others)
  return measured, models, tasks


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


def _again(texts: Sequence[Corpus], stride: int) -> list[Corpus]:
  """Returns texts under names for another stride, without those that have no windows."""
  end = f", stride {stride or 'max_length'}"
  return [
    dataclasses.replace(one, name=one.name + end, group=one.group and one.group + end)
    for one in texts
    if one.rule.kind != LAST_WORD
  ]


def _model(subject: Subject, names: Sequence[str]) -> Model:
  """Returns a model as it is scored, with a name that none of the others has."""
  same = sum(name == subject.name or name.startswith(f"{subject.name} (") for name in names)
  return Model(
    f"{subject.name} ({same + 1})" if same else subject.name,
    subject.decoder,
    subject.tokenizer,
    _MAX_LENGTH.value or subject.seq_len,
    start_token.begins_contexts(subject.tokenizer, _BOS.value),
  )


def _run_core(model: Model, bundle: Location) -> Results:
  """Returns CORE and its tasks in the form of the harness, in process 0; nothing in the others."""
  found = core.core(
    model.decoder,
    model.tokenizer,
    str(bundle),
    max_length=model.max_length,
    batch_size=subject_flags.BATCH_SIZE.value,
    limit=_LIMIT.value or None,
  )
  if found is None:
    return []
  parts = {
    f"{_CORE}/{label}": {"centered,none": one.centered, "centered_stderr,none": one.stderr}
    for label, one in found.tasks.items()
  }
  whole = {_CORE: {"centered,none": found.core, "centered_stderr,none": found.stderr}}
  details = {label: dataclasses.asdict(one) for label, one in found.tasks.items()}
  return [{"model": model.name, "results": whole | parts, "tasks": details}]


def _run_harness(model: Model, tasks: Sequence[str]) -> Results:
  """Returns what lm-evaluation-harness finds, in process 0; nothing in the others."""
  from resjax.interop.lm_eval import run_tasks

  # Its warnings are about the defaults of its own tasks, some for each of their metrics.
  logging.getLogger("lm_eval").setLevel(logging.ERROR)
  found = run_tasks(
    model.decoder,
    model.tokenizer,
    tasks,
    max_length=model.max_length,
    tasks_folder=_TASKS_FOLDER.value,
    num_fewshot=_FEWSHOT.value,
    limit=_LIMIT.value or None,
    batch_size=subject_flags.BATCH_SIZE.value,
    bos=_BOS.value,
    apply_chat_template=_CHAT.value,
  )
  if found is None:
    return []
  kept = ("results", "groups", "versions", "n-shot", "n-samples", "counts")
  return [{"model": model.name} | {key: found[key] for key in kept if key in found}]


def _settings() -> dict[str, Any]:
  """Returns the flags of the command that were given, and versions."""
  given = flags.FLAGS.flags_by_module_dict()
  names = [flag for module in given for flag in given[module] if _is_ours(module) and flag.present]
  versions = {name: _version(name) for name in _PACKAGES}
  return {
    "flags": {flag.name: flag.value for flag in names},
    "versions": versions | {"python": platform.python_version()},
    "devices": [jax.device_count(), jax.devices()[0].device_kind],
    "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
  }


def _is_ours(module: str) -> bool:
  return module in ("launch.evaluate", "launch.subject_flags", "__main__") or module.endswith(
    "evaluate.py"
  )


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def show(report: Report, tasks: Results, console: Console) -> None:
  """Prints the figures with their standard errors, how they come about, and differences."""
  measured = {one.corpus.name: one for one in report.measured}
  models = list(dict.fromkeys(one.model for one in report.measured))

  def title(text: str) -> str:
    return text if text in measured or text == corpora.MACRO else f"{text} (macro)"

  rows = [
    (title(text), model, name, _number(found.value), _number(found.stderr))
    for (model, text), metrics in _by_text(report.figures)
    for name, found in metrics.items()
    if name in _SHOWN
  ] + [row for one in tasks for row in _harness_rows(one)]
  several = len({row[1] for row in rows}) > 1
  _print(console, ("text", "model", "metric", "value", "±"), rows, several=several)
  for name, one in measured.items():
    units = "windows" if one.corpus.rule.kind in (STREAM, TOKENS) else "documents"
    console.print(
      f"{name}: {one.sums('tokens'):,.0f} tokens in {len(one.ids):,} {units}; rows of "
      f"{one.cut.max_length}, stride {one.cut.stride}; {one.corpus.rule.says}",
      highlight=False,
    )
  for one in report.measured:
    if one.lossy:
      console.print(
        f"warning: {one.corpus.name}: the tokenizer of {one.model} cannot spell all of "
        f"{one.lossy:,} documents, whose bits per byte are too low",
        highlight=False,
        markup=False,
      )
  differences = [
    (title(text), model, name, _signed(found.value), _interval(found))
    for (model, text), metrics in _by_text(report.differences)
    for name, found in metrics.items()
    if name in _COMPARED
  ]
  if differences:
    console.print(
      f"\ndifferences from {models[0]}; documents are drawn again for both together:",
      highlight=False,
    )
    columns = ("text", "model", "metric", "difference", "95 % interval")
    _print(console, columns, differences, several=True)


def _by_text(found: Mapping[tuple[str, str], _Found]) -> list[tuple[tuple[str, str], _Found]]:
  """Returns what was found by model and text, with all models of a text together."""
  texts = list(dict.fromkeys(text for _, text in found))
  return sorted(found.items(), key=lambda item: texts.index(item[0][1]))


def _print(
  console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], *, several: bool
) -> None:
  shown = [i for i, column in enumerate(columns) if several or column != "model"]
  table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
  for index in shown:
    left = columns[index] in ("text", "model", "metric")
    table.add_column(columns[index], overflow="fold", justify="left" if left else "right")
  for row in rows:
    table.add_row(*[row[index] for index in shown])
  console.print(table)


def _harness_rows(one: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
  """Returns rows of the table of what the harness found, whose keys are METRIC,FILTER."""
  rows = []
  for task, metrics in one["results"].items():
    for key, value in metrics.items():
      name, _, kind = key.partition(",")
      if kind and not name.endswith("_stderr") and isinstance(value, float):
        error = metrics.get(f"{name}_stderr,{kind}")
        shown = name if kind == "none" else f"{name} ({kind})"
        error = error if isinstance(error, float) else None
        rows.append((task, one["model"], shown, _number(value), _number(error)))
  return rows


def _number(value: float | None) -> str:
  if value is None:
    return "-"
  return f"{value:,.4f}" if abs(value) < 1000 else f"{value:.5g}"


def _interval(found: Difference) -> str:
  return "-" if found.interval is None else ", ".join(map(_signed, found.interval))


def _signed(value: float) -> str:
  return f"{value:+.4f}" if abs(value) < 1000 else f"{value:+.4g}"


def _draw(report: Report, paths: Sequence[str], place: Location) -> None:
  """Draws the first metric of each text over the steps of each run."""
  from resjax.analysis import plots  # Matplotlib takes a second, and nothing else needs it.

  names = list(dict.fromkeys(model for model, _ in report.figures))
  panels: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
  for (model, text), metrics in report.figures.items():
    index = names.index(model)
    if index < len(paths):  # models of --hf stand behind them, and have no steps
      run, _, step = paths[index].rpartition("/checkpoints/")
      name, found = next(iter(metrics.items()))
      curves = panels.setdefault(f"{text}: {name.replace('_', ' ')}", {})
      curves.setdefault(run, []).append((float(step), found.value, found.stderr or 0.0))
  plots.score_curves(panels, "scores of checkpoints", place)


if __name__ == "__main__":
  cli.run(main)
