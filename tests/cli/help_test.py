"""`--help` of every command: its documentation, its own flags, exit code 0, and what pages name."""

import ast
import functools
import re
import shlex

import pytest

from launch.bench.__main__ import BENCHMARKS
from resjax.cli import help_text
from tests.helpers import doc_commands, forks, named_flags
from tests.helpers.fakes import ROOT

FILES = [
  path
  for folder in ("launch", "resjax/cli/commands")
  for path in (ROOT / folder).rglob("*.py")
  if re.search(r"command\.run[(,]", path.read_text())
]
BENCH = ROOT / "launch" / "bench"


def words(path):
  """The words behind `resjax` that run the command of a file."""
  bench = ["bench"] * path.is_relative_to(BENCH)
  return [*bench, path.parent.name if path.stem == "__main__" else path.stem]


COMMANDS = {" ".join(words(path)): path for path in sorted(FILES)}
DEFINED = re.compile(r"flags\.DEFINE_\w+\(\s*(?:#[^\n]*\n\s*)?\"(\w+)\"")


@functools.cache
def run(module, *arguments):
  """Returns the exit code of a command, and what it printed."""
  return forks.command(module, COLUMNS=80)(*arguments)


def in_words(text):
  """The words of a text, without the signs that continue a line of a shell."""
  return [word for word in text.split() if word != "\\"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command):
  code, output = run(*command.split(), "--help")
  assert code == 0, output
  text = COMMANDS[command].read_text()
  documentation = in_words(ast.get_docstring(ast.parse(text)))
  assert in_words(output)[: len(documentation)] == documentation
  assert max(map(len, output.splitlines())) <= 80
  flags = DEFINED.findall(text) + ["config", "workdir"] * ("define_config" in text)
  if "text_flags" in text:
    flags += ["checkpoint", "hf", "data", "fsdp"]
  assert flags
  for name in flags:
    assert re.search(rf"^  --(\[no\])?{name}\b", output, re.MULTILINE), name
  assert "grain" not in output and "stderrthreshold" not in output


def test_every_command_is_walked():
  single = (
    "train train_together sweep ladder build_dataset aot evaluate analyze intervene inspect "
    "depth_retrieval generate export report tpu gke slurm local"
  )
  assert {*single.split(), *(f"bench {name}" for name in BENCHMARKS if name != "kernels")} == set(
    COMMANDS
  )


def test_commands_that_are_broken_are_still_commands(monkeypatch):
  monkeypatch.setenv("COLUMNS", "60")
  command = '  resjax train --config=FILE --config.a="b c" --config.steps=1000  (a note)'
  first, second, note = help_text.fitted(command).splitlines()
  assert note == "      (a note)" and max(len(first), len(second)) <= 60
  words = shlex.split(command.partition("  (")[0])
  assert first.endswith(" \\") and shlex.split(f"{first[:-1]} {second}") == words


def test_short_form():
  assert run("train", "-h") == run("train", "--config=configs/tiny.py", "--help")


@pytest.mark.slow
def test_benchmarks():
  code, listed = run("launch.bench", "--help")
  assert code == 0 and all(f"  {name} " in listed for name in BENCHMARKS)
  assert max(map(len, listed.splitlines())) <= 80
  code, output = run("launch.bench")
  assert code == 1 and output.startswith("error: one word says what to measure, of: kernels, ")
  assert output.count("\n") == 1
  code, output = run("launch.bench", "kernel")
  assert code == 1
  assert output == f"error: 'kernel' is not a benchmark; allowed: {', '.join(BENCHMARKS)}\n"
  code, output = run("launch.bench", "kernels", "--help")
  assert code == 0 and "--network-bytes" in output and "resjax bench kernels" in output
  code, output = run("launch.bench", "kernels", "--sh\x1b[31mapes=1")
  assert code == 1
  assert output == "error: unrecognized arguments: --sh\\x1b[31mapes=1\n"


# Flags that stand alone in a sentence, and are those of another program.
OF_OTHERS = {
  *("gpus-per-task", "gpu-bind"),  # srun
  "minutes",  # pytest, by tests/conftest.py
}


@pytest.mark.parametrize("page", doc_commands.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.slow
def test_pages_name_flags_that_help_has(page):
  def flags_of(command):
    code, output = run(*command.split(), "--help")
    assert code == 0, output
    return named_flags.of_help(output)

  alone = set().union(*map(flags_of, named_flags.commands_of(page)), OF_OTHERS)
  for command, flags in named_flags.of_page(page):
    unknown = set(flags) - (flags_of(command) if command else alone)
    assert not unknown, (command, flags)
