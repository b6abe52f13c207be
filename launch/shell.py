"""Pieces of shell scripts that the launchers share."""

import shlex
from collections.abc import Sequence

# JAX would choose port 8482 on Cloud TPU. The default firewall of Google Cloud blocks it, so that
# processes would wait for each other in silence (jax issue 35905). Port 8476 is open.
COORDINATOR_PORT = 8476
STOPPED = 143  # exit code of a command that a signal has stopped: 128 + SIGTERM
EXIT = 'exit "$code"\n'


def supervised(command: Sequence[str], hand_on: bool = True) -> str:
  """Returns a script that runs a command and sets `code` to its exit code.

  When SIGTERM tells the trainer to stop, it saves and exits with 0, like a run that is done. `code`
  is STOPPED then, so that a scheduler can tell the two apart.

  Args:
    command: what to run.
    hand_on: whether the script sends the SIGTERM that it gets on to the command; it must not where
      the scheduler sends SIGTERM to all processes by itself.
  """
  send = 'if [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null || true; fi'
  return f"""\
stopped=0
child=
trap 'stopped=1{"; " + send if hand_on else ""}' TERM
{shlex.join(command)} < /dev/null &
child=$!
while true; do
  code=0
  wait "$child" || code=$?
  kill -0 "$child" 2>/dev/null || break
done
if [ "$stopped" = 1 ] && [ "$code" = 0 ]; then code={STOPPED}; fi
"""


def heredoc(text: str, word: str) -> str:
  """Returns a here-document that bash takes literally, from `<<` to its last line.

  Args:
    text: its lines.
    word: the delimiter; it gets underscores until no line begins with it, spaces aside.
  """
  while any(line.lstrip().startswith(word) for line in text.split("\n")):
    word += "_"
  return f"<<'{word}'\n{text.removesuffix(chr(10))}\n{word}\n"


def one_line(script: str) -> str:
  """Returns a script as a single word of bash without line breaks."""
  escaped = script.replace("\\", r"\\").replace("'", r"\'").replace("\n", r"\n")
  return f"$'{escaped}'"
