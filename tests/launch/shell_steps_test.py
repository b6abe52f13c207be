"""Steps: printed as shell, run in order, undone when one fails or is interrupted."""

import signal
import subprocess
import sys
import time

import pytest

from launch import shell_steps
from launch.shell_steps import Step
from resjax.base.processes.signals import Interrupted
from tests.helpers.fakes import ROOT, FakeTools


@pytest.fixture
def tools(tmp_path, monkeypatch):
  tools = FakeTools(tmp_path / "tools", "make", "free")
  monkeypatch.setenv("PATH", tools.environment()["PATH"])
  return tools


def todo():
  return [Step(f"make {name}", ("make", name), undo=("free", name)) for name in "abc"]


def words(tools):
  return [" ".join(call.argv) for call in tools.calls]


def test_steps_run_in_order(tools):
  shell_steps.run(todo(), "again")
  assert words(tools) == ["make a", "make b", "make c"]


@pytest.mark.parametrize("failing", "abc")
def test_a_failure_undoes_what_was_made_and_says_how_to_go_on(tools, failing):
  tools.answer(f"make {failing}", 3)
  with pytest.raises(ValueError) as raised:
    shell_steps.run(todo(), "python -m x")
  made = "abc"[: "abc".index(failing) + 1]
  assert words(tools) == [f"make {one}" for one in made] + [f"free {one}" for one in made[::-1]]
  message = str(raised.value)
  assert f"step {len(made)} of 3 (make {failing}) failed: exit code 3" in message
  assert "nothing is left running; go on with: python -m x" in message


def test_what_cannot_be_undone_is_named(tools):
  tools.answer("make b", 3)
  tools.answer("free a", 1)
  with pytest.raises(ValueError, match="LEFT RUNNING, look and run: free a; go on with: again"):
    shell_steps.run(todo(), "again")


def test_a_check_sees_the_output_and_undoes_the_steps_before(tools):
  def refuse(output):
    raise ValueError(f"{output} is taken")

  tools.answer("make look", "NAME")
  with pytest.raises(ValueError, match="NAME is taken; what was made is undone"):
    shell_steps.run([todo()[0], Step("look", ("make", "look"), check=refuse), todo()[1]], "again")
  assert words(tools) == ["make a", "make look", "free a"]


def test_programs_that_are_missing_are_named_before_anything_runs(tools):
  more = Step("delete", ("gcloud", "delete"))
  with pytest.raises(ValueError, match="gcloud is not on PATH; install the Google Cloud CLI"):
    shell_steps.run([*todo(), more], "again")
  assert not tools.calls


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_undoes_too(tools, number):
  tools.answer("make b", run="sleep 30")
  program = (
    "from launch.shell_steps import run\nfrom tests.launch.shell_steps_test import todo\n"
    "run(todo(), 'again')"
  )
  process = subprocess.Popen(
    [sys.executable, "-c", program], cwd=ROOT, env=tools.environment(), stderr=subprocess.PIPE
  )
  while len(tools.calls) < 2:
    time.sleep(0.02)
  process.send_signal(number)
  error = process.communicate(timeout=20)[1].decode()
  assert words(tools) == ["make a", "make b", "free b", "free a"]
  assert Interrupted.__name__ in error and "step 2 of 3 (make b) was interrupted" in error


def test_the_printed_text_is_the_same_calls(tools):
  script = "echo \"it's\"\ncat <<'END'\n$HOME `x` \\\nEND\n"
  arguments = ("make", "a b", "$HOME", "", f"--command={script}", script)
  step = Step("x", arguments, stdin="one\n$two\n", undo=("free", script))
  subprocess.run(["bash", "-euc", shell_steps.text(step)], env=tools.environment(), check=True)
  (call,) = tools.calls
  # $(...) drops line breaks at the end, which mean nothing there
  assert [one.rstrip("\n") for one in call.argv] == [one.rstrip("\n") for one in arguments]
  assert call.stdin == step.stdin


def test_a_dry_run_runs_nothing(tools, capsys):
  shell_steps.run(todo(), "again", dry_run=True)
  assert not tools.calls
  assert capsys.readouterr().out.count("# undone by: free") == 3
