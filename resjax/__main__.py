"""The command `resjax`, also `python -m resjax`: runs the one of its commands that is named."""

import difflib
import importlib
import os
import signal
import sys
from importlib.util import find_spec
from typing import NoReturn

from resjax.base import __version__, extras
from resjax.cli import huge_pages, interrupts, kept_programs, shipped
from resjax.cli.shipped import completion

COMMANDS = {
  "train": {
    "train": "train what a config describes",
    "sweep": "train several models and compare them",
    "train_together": "train runs that differ in seeds or rates in one program",
    "build_dataset": "build the tokenized data of a config",
  },
  "look at trained models": {
    "analyze": "at which depth a model turns to the next token",
    "inspect": "tuned lens, parts of a logit, activation patching",
    "intervene": "what is lost when the residual path is cut",
    "evaluate": "perplexities and accuracies on texts and tasks",
    "generate": "sample text",
    "export": "write a folder that transformers and vLLM load",
    "report": "a page of HTML about a run or a sweep",
    "ladder": "fit a scaling law to a sweep",
  },
  "before a run": {
    "aot": "compile for accelerators that are not there: memory, speed",
    "bench": "in a checkout: benchmarks of kernels, steps, decoding",
    "depth_retrieval": "which systems can learn to pick a layer",
  },
  "machines and shells": {
    "tpu": "create Cloud TPUs, run a command on them, delete them",
    "gke": "run a command on Google Kubernetes Engine",
    "slurm": "submit a command to SLURM",
    "local": "run a command in several processes of this machine",
    "completion": "what bash or zsh reads to complete all this",
  },
}
_HELP = {"-h", "-help", "--help"}
_QUIET = {"--h", "-helpshort", "--helpshort", "-helpfull", "--helpfull", "--check_flags"}
_NAMES = [name for group in COMMANDS.values() for name in group]
# Commands of the package `launch`, by their modules there.
_LAUNCHERS = {name: f"launch.{name}.__main__" for name in ("bench", "tpu", "gke", "slurm", "local")}
_LAUNCHERS["aot"] = "launch.aot"


def main() -> None:
  """Runs the command that the first word names, with the words behind it, and ends the process."""
  name, *words = sys.argv[1:] or ["--help"]
  if name in ("-h", "-help", "--help", "help"):
    _print(_help())
  elif name == "--version":
    _print(f"resjax {__version__}")
  elif name == "completion":
    _complete(words)
  elif name not in _NAMES:
    nearest = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.4)
    meant = f"did you mean {nearest[0]}? " if nearest else ""
    _fail(f"resjax has no command {name!r}; {meant}resjax --help lists all")
  else:
    _run(name, words)


def _complete(words: list[str]) -> None:
  """Prints the completion script of a shell."""
  if _HELP & set(words):
    _print("source <(resjax completion bash)    completes commands, flags and configs; or zsh")
    return
  try:
    script = completion.script(" ".join(words), _NAMES)
  except ValueError as error:
    _fail(str(error))
  _print(script)


def _run(name: str, words: list[str]) -> None:
  """Runs a command, whose module has a function `run`."""
  computes = not (_HELP | _QUIET) & set(words)
  if computes:
    huge_pages.ask([name, *words])
  interrupts.install()
  shipped.make_own_importable()
  module = f"resjax.cli.commands.{name}"
  if name in _LAUNCHERS:
    shipped.make_launchers_importable()
    module = _LAUNCHERS[name]
  elif computes:  # and benchmarks compile anew
    kept_programs.keep(os.environ)
  try:
    found = find_spec(module)
  except ModuleNotFoundError:
    found = None
  if found is None:
    _fail(
      f"resjax {name} measures a checkout and is not in the wheel; clone the repository and run "
      "`pip install -e .` there"
    )
  sys.argv = [found.origin or name, *words]  # modules define flags by it
  try:
    command = importlib.import_module(module)
  except ModuleNotFoundError as error:
    package = (error.name or "").split(".")[0]
    if find_spec(package) is not None:  # it is there, and part of it is not
      raise
    _fail(extras.missing(f"resjax {name}", package))
  command.run()


def _help() -> str:
  """Returns the list of all commands, for a screen of 80 columns."""
  lines = ["usage: resjax COMMAND [FLAGS]    resjax COMMAND --help names the flags of one"]
  for title, commands in COMMANDS.items():
    lines += [f"{title}:", *(f"  {name:<16} {what}" for name, what in commands.items())]
  return "\n".join(lines)


def _print(text: str) -> None:
  """Prints a text; ends without a word if nobody reads it, as commands do, else with one."""
  try:
    print(text, flush=True)
  except OSError as error:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is in the buffer
    if isinstance(error, BrokenPipeError):
      sys.exit(128 + signal.SIGPIPE)
    _fail(str(error))


def _fail(message: str) -> NoReturn:
  sys.exit(f"error: {message}")


if __name__ == "__main__":
  main()
