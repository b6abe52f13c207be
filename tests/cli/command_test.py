"""What all commands share, seen from outside."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers import forks
from tests.helpers.fakes import ROOT

# The first collection interrupts itself, where Python can only report what a callback raises.
INTERRUPTED_WHERE_NOTHING_CAN_BE_RAISED = """
import gc, signal, time
from resjax.cli import command

def interrupt(phase, info):
  gc.callbacks.remove(interrupt)
  signal.raise_signal(signal.SIGINT)

def main():
  gc.callbacks.append(interrupt)
  gc.collect()
  for _ in range(200):  # a signal on the way into one long sleep is seen after it
    time.sleep(0.1)

command.run(main)
"""


def test_a_ctrl_c_that_comes_in_a_callback_of_the_collector_is_not_lost():
  command = [sys.executable, "-c", INTERRUPTED_WHERE_NOTHING_CAN_BE_RAISED]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
  assert done.returncode == 130, done.stderr
  assert done.stderr.strip() == "interrupted; the same command goes on where it can"


FAILS = """
import errno, zlib
from resjax.cli import command

def main():
  {body}

command.run(main, folder=lambda: {folder!r})
"""


def fails(tmp_path, body, *flags, folder=None, **options):
  command = [sys.executable, "-c", FAILS.format(body=body, folder=folder), *flags]
  environment = {**os.environ, "TMPDIR": str(tmp_path), "SOME_TOKEN": "hush-hush"}
  return subprocess.run(
    command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment, **options
  )


def fails_in_a_fork(body, folder):
  fail = forks.command("tests.helpers.failing", BODY=body, FOLDER=folder, SOME_TOKEN="hush-hush")
  code, output = fail()
  assert code == 1
  return output


@pytest.mark.parametrize(
  ("body", "words"),
  [
    ("raise ValueError('a setting\\nis wrong')", "a setting is wrong"),
    ("open('/nowhere/x')", "No such file or directory: '/nowhere/x'"),
    ("import no_such_module", "No module named 'no_such_module'"),
    ("b'\\xff'.decode()", "can't decode byte 0xff"),
    ("raise MemoryError", "out of memory (MemoryError); less is needed with a smaller"),
    ("raise type('JaxRuntimeError', (RuntimeError,), {})('RESOURCE_EXHAUSTED: x')", "out of mem"),
    ("raise OSError(errno.ENOSPC, 'No space left', 'x\\x1b[31m\\udcff')", r"'x\x1b[31m\udcff'"),
    ("raise ValueError('SOME_TOKEN=abc hush-hush')", "SOME_TOKEN=*** ***"),
    ("import logging; logging.getLogger('gcsfs').error('x'); raise ValueError('a bucket')", "a bu"),
    (r"raise ValueError('a\x1b[31mb\x07\u202ec')", r"error: a\x1b[31mb\x07\u202ec"),
  ],
)
def test_an_error_of_the_user_is_one_line(tmp_path, body, words):
  output = fails_in_a_fork(body, tmp_path)
  assert output.startswith("error: ") and output.count("\n") == 1, output
  assert words in output and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("body", "words"),
  [
    ("{}['k']", "KeyError: 'k'; a bug in resjax or in a library; run again with --debug"),
    ("None.x", "AttributeError: 'NoneType'"),
    ("1 + 'a'", "TypeError: unsupported operand"),
    ("(f := lambda: f())()", "RecursionError: maximum recursion"),
    ("raise RuntimeError('hush-hush')", "RuntimeError: ***; a bug"),
    ("zlib.decompress(b'x')", "a compressed file is damaged or cut (Error -5"),
    ("raise EOFError", "a compressed file is damaged or cut (EOFError)"),
  ],
)
def test_another_error_is_one_line_that_names_the_file_with_its_traceback(tmp_path, body, words):
  (tmp_path / "run").mkdir()
  check_traceback(fails_in_a_fork(body, tmp_path / "run"), words, tmp_path / "run")


def test_an_error_in_a_file_of_the_user_names_file_and_line(tmp_path):
  mine = tmp_path / "mine.py"
  mine.write_text("def fail():\n  return {}['k']\n")
  body = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import mine; mine.fail()"
  done = fails(tmp_path, body, folder=str(tmp_path))
  assert done.returncode == 1 and done.stdout == ""
  check_traceback(done.stderr, f"error: {mine}:2: KeyError: 'k'; traceback in ", tmp_path)


def test_a_traceback_that_has_no_folder_is_a_temporary_file(tmp_path):
  done = fails(tmp_path, "raise RuntimeError('hush-hush')", folder=str(tmp_path / "nowhere"))
  assert done.returncode == 1 and done.stdout == ""
  check_traceback(done.stderr, "RuntimeError: ***", tmp_path)


def check_traceback(output, words, folder):
  assert output.startswith("error: ") and words in output and output.count("\n") == 1, output
  log = pathlib.Path(output.strip().split("; traceback in ")[1])
  assert log.parent == folder
  text = log.read_text()
  assert "Traceback (most recent call last)" in text and "hush" not in text
  assert log.stat().st_mode & 0o077 == 0


def test_a_log_follows_no_link(tmp_path):
  victim = tmp_path / "victim"
  victim.touch()
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "error.log").symlink_to(victim)
  done = fails(tmp_path, "{}['k']", folder=str(tmp_path / "run"))
  assert done.returncode == 1 and victim.read_text() == ""
  assert f"; traceback in {tmp_path}/resjax-error-" in done.stderr


@pytest.mark.parametrize("body", ["raise ValueError('wrong')", "{}['k']"])
def test_debug_prints_the_traceback_too(tmp_path, body):
  done = fails(tmp_path, body, "--debug")
  assert done.returncode == 1 and "Traceback (most recent call last)" in done.stderr
  assert done.stderr.splitlines()[-1].startswith("error: ")


def test_an_error_of_a_thread_is_one_line(tmp_path):
  body = "import threading; t = threading.Thread(target=lambda: {}['k']); t.start(); t.join()"
  done = fails(tmp_path, body)
  assert done.returncode == 0 and done.stderr.startswith("error: KeyError: 'k'; a bug")
  assert done.stderr.count("\n") == 1


PRINTS = {
  "print": "print('x\\n' * 100000); print('y', flush=True)",
  "print at the end": "print('x\\n' * 1000)",
  "rich": "from resjax.base import terminal as t\n  for _ in range(99999): t.console().print('x')",
}


@pytest.mark.parametrize("how", PRINTS)
def test_output_that_nobody_reads_ends_the_command_without_a_word(tmp_path, how):
  script = f'{sys.executable} -c "$PROGRAM" | head -n 0; echo ${{PIPESTATUS[0]}}'
  body = "import time; time.sleep(0.5); " + PRINTS[how]
  done = subprocess.run(
    ["bash", "-c", script],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    env={**os.environ, "PROGRAM": FAILS.format(body=body, folder=None)},
  )
  assert (done.stdout, done.stderr) == ("141\n", "")


CONFIGS = {
  "def get_config(:\n  pass\n": "FILE:1: invalid syntax",
  "x = 1\n": "FILE has no function get_config()",
  "def get_config():\n  return {}['k']\n": "FILE:2: KeyError: 'k'",
  "def get_config():\n  return 1\n": "FILE: get_config() must return a ConfigDict, and returns int",
  "def get_config():\n  raise ValueError('a setting\\nis bad')\n": "FILE:2: a setting is bad",
  "import no_such\ndef get_config():\n  return 1\n": "FILE:1: ModuleNotFoundError: No module named",
  "import sys\nsys.exit('end')\n": "FILE:2: SystemExit: end",
  "\0": "FILE:1: source code string cannot contain null bytes",
  "def get_config():\n  return get_config()\n": "FILE:2: RecursionError: maximum recursion",
}


@pytest.mark.slow
def test_configs_that_fail_name_file_and_line(tmp_path):
  file = tmp_path / "config.py"
  train = forks.command("train")
  for text, words in CONFIGS.items():
    file.write_text(text)
    code, output = train(f"--config={file}", "--dry_run")
    assert code == 1 and output.count("\n") == 1, output
    assert output.startswith(f"error: {words.replace('FILE', str(file))}"), output
  code, output = train("--config=configs/tiny.py", "--stages=3")
  assert code == 1 and "'stages'; settings look like --config.train.steps=2\n" in output
  code, output = train(f"--config={tmp_path}")
  assert code == 1 and output.startswith(f"error: --config={tmp_path}: is a folder, not a file")
  for setting in ("extra", "train.extra", "data.corpora.extra"):
    code, output = train("--config=configs/tiny.py", f"--config.{setting}=1")
    assert code == 1 and output == f"error: --config.{setting}=1: there is no setting 'extra'\n"
  for setting, words in {
    "workdir=": "config.workdir='' names no folder",
    f"seed={2**63}": "config.seed=9223372036854775808 must be a whole number of at most",
    "model.num_layers=1000000000": "config.model.num_layers=1000000000 must be a whole number of",
    "model.rope_theta=inf": "config.model.rope_theta=inf must be a finite number",
  }.items():
    code, output = train("--config=configs/tiny.py", "--dry_run", f"--config.{setting}")
    assert code == 1 and output.startswith(f"error: {words}") and output.count("\n") == 1, output


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_changes_nothing(closed):
  command = [sys.executable, "-m", "launch.bench", "--help" if closed == "stdout" else "nothing"]
  number = 1 if closed == "stdout" else 2
  # A shell closes the stream: subprocess cannot.
  words = ["bash", "-c", f'exec "$@" {number}>&-', "bash", *command]
  done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
  assert done.returncode == (0 if closed == "stdout" else 1)
  assert done.stdout == "" and done.stderr == ""


# A library that is imported waits, and would catch a KeyboardInterrupt.
WAITS = """
import pathlib, time
pathlib.Path({here!r}).touch()
try:
  time.sleep(30)
except BaseException as error:
  raise ImportError("broken library") from None
"""


@pytest.mark.parametrize("module", ["launch.train", "launch.bench"])
def test_a_ctrl_c_while_libraries_are_imported_is_one_line(tmp_path, module):
  (tmp_path / "ml_collections.py").write_text(WAITS.format(here=str(tmp_path / "here")))
  path = os.pathsep.join([str(tmp_path), str(ROOT)])
  process = subprocess.Popen(
    [sys.executable, "-m", module],
    stderr=subprocess.PIPE,
    text=True,
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": path},
  )
  while not (tmp_path / "here").exists():
    assert process.poll() is None, process.stderr.read()
    time.sleep(0.05)
  process.send_signal(signal.SIGINT)
  _, written = process.communicate(timeout=300)
  assert process.returncode == 130
  assert written == "interrupted; the same command goes on where it can\n"


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full")
def test_help_that_cannot_be_written_is_one_line():
  with open("/dev/full", "w") as full:
    command = [sys.executable, "-m", "resjax", "export", "--help"]
    done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=300)
  assert done.returncode == 1
  assert done.stderr == b"error: [Errno 28] No space left on device\n"
