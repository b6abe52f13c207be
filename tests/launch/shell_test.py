"""Scripts for hosts: what shellcheck says, and what they do when they run here."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from launch.shell import EXIT, heredoc, one_line, supervised
from launch.tpu import remote
from tests.helpers.fakes import shellcheck

AWKWARD = ("python", "-c", 'print("it\'s", \'$HOME\', `x`, "a\\\\b")', "", "two  words")
SAVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), print("saved", flush=True), sys.exit(0)))
print("up", flush=True)
while True:  # in short naps: a signal just before a sleep begins is handled only when it ends
  time.sleep(0.05)
"""


PLAIN = ("python", "-m", "launch.train", "--config=a.py:b", "--config.workdir=gs://b/it's")
SCRIPTS = {
  "supervised": supervised(PLAIN) + EXIT,
  "supervised, SIGTERM sent to all": supervised(PLAIN, hand_on=False) + EXIT,
  "install": remote.install("3.12", "tpu,wandb"),
  "start": remote.start(PLAIN, {"KEY": "it's $x"}),
  "stop": remote.stop(10),
  "status": remote.status(),
  "logs": remote.logs(10),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_has_nothing_to_say(name):
  assert shellcheck(SCRIPTS[name]) == ""


def test_shellcheck_would_say_something():
  assert "SC2086" in shellcheck("rm $1")


def run(script, **more):
  return subprocess.run(["bash", "-c", script], text=True, capture_output=True, **more)


def test_a_supervised_command_gets_its_arguments_and_its_exit_code_stands():
  program = "import json, sys; print(json.dumps(sys.argv[1:])); sys.exit(5)"
  done = run(supervised([sys.executable, "-c", program, *AWKWARD]) + EXIT)
  assert done.returncode == 5 and json.loads(done.stdout) == list(AWKWARD)
  assert run(supervised(["true"]) + EXIT).returncode == 0


def test_one_line():
  script = supervised(["printf", "%s|", *AWKWARD]) + EXIT
  line = f"exec bash -c {one_line(script)}"
  assert "\n" not in line
  assert run(line).stdout == "".join(f"{word}|" for word in AWKWARD)


@pytest.mark.parametrize("whom", ["script", "all"])
def test_a_command_that_is_told_to_stop_saves_and_is_not_taken_for_done(whom):
  script = supervised([sys.executable, "-c", SAVES], hand_on=whom == "script") + EXIT
  process = subprocess.Popen(
    ["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
  )
  assert process.stdout.readline() == "up\n"
  os.kill(process.pid if whom == "script" else -process.pid, signal.SIGTERM)
  assert process.communicate(timeout=20)[0] == "saved\n"
  assert process.returncode == 143


@pytest.fixture
def host(tmp_path):
  """Runs a script as on a host whose home folder is empty but for the code."""
  (tmp_path / remote.CODE).mkdir()
  environment = {**os.environ, "HOME": str(tmp_path)}

  def on_host(script):
    return run(script, env=environment, timeout=60)

  on_host.home = tmp_path
  yield on_host
  on_host(remote.stop(1))


def state(host):
  return host(remote.status()).stdout.split(" ", 2)[2].split(" | ")


def wait_for(host, what):
  deadline = time.monotonic() + 30
  while what not in state(host)[0]:
    assert time.monotonic() < deadline, state(host)
    time.sleep(0.05)


def test_a_host_tells_what_it_runs(host):
  assert state(host)[0] == "none"
  program = "import os; print(os.environ['KEY'], os.environ['JAX_COORDINATOR_PORT'], os.getcwd())"
  started = host(remote.start([sys.executable, "-c", program], {"KEY": "it's $x"}))
  assert started.returncode == 0 and "started" in started.stdout
  wait_for(host, "exit 0")
  assert state(host)[1] == f"it's $x 8476 {host.home / remote.CODE}\n"
  host(remote.start([sys.executable, "-c", "raise SystemExit(3)"], {}))
  wait_for(host, "exit 3")


def test_a_host_runs_one_command_at_a_time_and_stop_lets_it_save(host):
  assert host(remote.start([sys.executable, "-c", SAVES], {})).returncode == 0
  wait_for(host, "running")
  while state(host)[1] != "up\n":
    time.sleep(0.05)
  for script in (remote.start(["true"], {}), remote.install("3.12", "tpu")):
    refused = host(script)
    assert refused.returncode == 1 and "end it with stop" in refused.stderr
  assert (host.home / remote.CODE).exists()
  assert host(remote.stop(20)).returncode == 0
  assert state(host) == ["exit 143", "saved\n"]
  assert host(remote.stop(20)).returncode == 0  # nothing runs: nothing to do


def test_stop_kills_what_does_not_end(host):
  deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True)"
  host(remote.start([sys.executable, "-c", f"{deaf}; time.sleep(60)"], {}))
  while state(host)[1] != "up\n":
    time.sleep(0.05)
  assert host(remote.stop(1)).returncode == 0
  assert state(host)[0] == "exit 137"


def test_the_log_of_a_host_is_followed(host):
  host(remote.start(["printf", "one\\ntwo\\n"], {}))
  wait_for(host, "exit 0")
  environment = {**os.environ, "HOME": str(host.home)}
  process = subprocess.Popen(
    ["bash", "-c", remote.logs(10)],
    env=environment,
    stdout=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )
  lines = [process.stdout.readline() for _ in range(2)]
  os.killpg(process.pid, signal.SIGKILL)
  process.communicate()
  assert [line.split("] ")[1] for line in lines] == ["one\n", "two\n"]


@pytest.mark.parametrize("line", ["END", "END_", "ENDING", "  END", "\tEND", " \t END)"])
def test_a_here_document_ends_where_its_text_does(line):
  text = f"before\n{line}\nafter"
  script = f"cat {heredoc(text, 'END')}echo over\n"
  done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
  assert done.stdout == f"{text}\nover\n"
  assert shellcheck(script) == ""
