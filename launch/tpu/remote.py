"""Writes the scripts that run on the hosts of a slice, in bash and in the user's home folder."""

import shlex
from collections.abc import Mapping, Sequence

from launch.shell import COORDINATOR_PORT, heredoc, supervised

BUNDLE = "resjax.bundle"  # the git bundle of the code,
ARCHIVE = "resjax.tar.gz"  # or a folder with it
CODE = "resjax"
VENV = "resjax-venv"
RUN = "resjax-run"  # holds command.sh, and its log, pid and exit_code
STATUS = "resjax-status"

# The command line is compared because after a restart the number may be another process's.
_ALIVE = f'pid=$(cat {RUN}/pid 2>/dev/null) && grep -qsa {RUN}/command.sh "/proc/$pid/cmdline"'
_REFUSE = f"""\
if {_ALIVE}; then
  echo "$(hostname): a command is running already; end it with stop" >&2
  exit 1
fi
"""


def install(python: str, extra: str, sent: str = BUNDLE, wheel: str = "") -> str:
  """Returns the script that unpacks the code and installs it.

  Args:
    python: the version of Python.
    extra: the extras of the package.
    sent: `BUNDLE`, `ARCHIVE`, or empty: the folder of the code stays empty.
    wheel: the name of the wheel that is installed; empty: the code is.
  """
  unpack = f"mkdir {CODE}\n"
  if sent == ARCHIVE:
    unpack += f"tar --extract --gzip --file={ARCHIVE} --directory={CODE}\n"
  elif sent:
    unpack = f"git clone --quiet {BUNDLE} {CODE}\n"
  target = f"--editable {shlex.quote(f'./{CODE}[{extra}]')}"
  if wheel:
    package = wheel.partition("-")[0]
    target = f'{shlex.quote(f"{package}[{extra}] @ file://")}"$PWD"{shlex.quote(f"/{wheel}")}'
  revision = f"$(git -C {CODE} rev-parse --short HEAD)" if sent == BUNDLE else "a copy"
  return f"""\
set -euo pipefail
cd "$HOME"
{_REFUSE}
rm -rf {CODE} {VENV}
{unpack}python3 -m pip install --quiet --user uv
python3 -m uv venv --quiet --python {shlex.quote(python)} {VENV}
python3 -m uv pip install --quiet --python {VENV} {target}
echo "$(hostname): {revision}, $({VENV}/bin/python --version)"
"""


def start(command: Sequence[str], environment: Mapping[str, str]) -> str:
  """Returns the script that starts a command in the code folder, independent of any terminal.

  Only the user may read the file that it writes, since the environment may hold secrets.
  """
  exports = {"JAX_COORDINATOR_PORT": str(COORDINATOR_PORT), **environment}
  exported = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in exports.items())
  script = f"""\
{exported}export PYTHONUNBUFFERED=1 PATH="$HOME/{VENV}/bin:$PATH"
cd "$HOME/{CODE}" || exit 1
{supervised(command)}
echo "$code" > "$HOME/{RUN}/exit_code"
"""
  return f"""\
set -euo pipefail
cd "$HOME"
{_REFUSE}
mkdir -p {RUN}
rm -f {RUN}/exit_code {RUN}/command.sh
(umask 077; cat > {RUN}/command.sh {heredoc(script, "END_OF_COMMAND")})
setsid nohup bash {RUN}/command.sh >> {RUN}/log 2>&1 < /dev/null &
echo "$!" > {RUN}/pid
echo "$(hostname): started"
"""


def stop(seconds: int) -> str:
  """Returns the script that lets the command save and end, and kills it after `seconds`."""
  return f"""\
set -euo pipefail
cd "$HOME"
await_end() {{
  for _ in $(seq "$1"); do
    grep -qsa {RUN}/command.sh "/proc/$pid/cmdline" || break
    sleep 0.2
  done
}}
if {_ALIVE}; then
  kill -TERM "$pid"
  await_end {5 * seconds}
  if {_ALIVE}; then
    kill -KILL -- "-$pid"
    await_end 50  # a busy host takes a moment to end what is killed
  fi
fi
echo "$(hostname): stopped"
"""


def status() -> str:
  """Returns the script that prints one line: the host, its state, and the last line of the log.

  The state is `running`, `none` (nothing was started), or `exit CODE`.
  """
  return f"""\
set -euo pipefail
cd "$HOME"
state=none
if {_ALIVE}; then
  state=running
elif [ -e {RUN}/exit_code ]; then
  state="exit $(cat {RUN}/exit_code)"
elif [ -e {RUN}/pid ]; then
  state="exit 137"
fi
echo "{STATUS} $(hostname) $state | $(tail -n 1 {RUN}/log 2>/dev/null || true)"
"""


def logs(lines: int) -> str:
  """Returns the script that prints the end of the log and follows it."""
  return f"""\
set -euo pipefail
tail -n {lines} -F "$HOME/{RUN}/log" 2>/dev/null | sed -u "s/^/[$(hostname)] /"
"""
