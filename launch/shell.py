"""Shell text that the launchers share."""

import shlex
from collections.abc import Sequence

# JAX's own port on Cloud TPU, 8482, is not open in the default firewall of Google Cloud, and its
# processes would wait for each other in silence (jax issue 35905); 8476 is.
COORDINATOR_PORT = 8476
STOPPED = 143  # exit code of a command that a signal stopped: 128 + SIGTERM
EXIT = 'exit "$code"\n'


def supervised(command: Sequence[str], hand_on: bool = True) -> str:
  """Returns a script that runs a command and sets `code` to its exit code.

  The trainer saves and exits with 0 when SIGTERM tells it to stop. So that a scheduler can tell
  this from a run that is done, `code` is STOPPED then.

  Args:
    command: what to run.
    hand_on: whether SIGTERM, which the script gets, is sent on to the command; not where the
      scheduler sends it to all processes.
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


def one_line(script: str) -> str:
  """Returns a script as one word of bash that has no line breaks."""
  escaped = script.replace("\\", r"\\").replace("'", r"\'").replace("\n", r"\n")
  return f"$'{escaped}'"
