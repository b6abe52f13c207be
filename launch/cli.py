"""What all commands share: the config flag, `--help`, and the user's mistakes as one line each."""

import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from resjax import processes
from resjax.processes.signals import SIGINT_CODE, Interrupted

# Seconds for which processes wait for each other: at the start, and for a sign of life.
_BRINGUP, _HEARTBEAT = 300, 100
_AGAIN = 0.05  # seconds after which a Ctrl-C that was lost is delivered again
_HELP = {"-h", "--h", "-help", "--help", "-helpshort", "--helpshort"}


def define_config(help_text: str) -> flags.FlagHolder:
  """Defines --config=FILE[:ARGUMENT], and --config.KEY=VALUE for each of its settings."""
  return config_flags.DEFINE_config_file("config", None, help_text, lock_config=True)


def run(main: Callable[..., None], takes_words: bool = False) -> NoReturn:
  """Runs a command and ends the process.

  A mistake of the user prints one line and exits with 1, and with --verbosity=1 also where it was
  noticed. Ctrl-C exits with 130, SIGTERM with 0. If one of several processes ends, all of them end.
  --help prints the docstring and the flags of the command, and exits with 0.

  Args:
    main: the command. It takes no arguments, or with `takes_words` two lists: the words of the
      command line that are no flags, and what follows `--`.
    takes_words: whether the command line may hold words that are no flags.
  """
  end = sys.argv.index("--") if takes_words and "--" in sys.argv else len(sys.argv)
  arguments, after = sys.argv[:end], sys.argv[end + 1 :]

  def guarded(argv: list[str]) -> None:
    _watch_unraisable_errors()
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)  # libraries log every step as info
      _drop_repeated_reports()
    try:
      if len(argv) > 1 and not takes_words:
        raise ValueError(f"unexpected argument {argv[1]!r}; settings look like --config.seed=1")
      main(*([argv[1:], after] if takes_words else []))
    except Interrupted as stop:
      if stop.agreed:
        processes.shutdown()
      processes.end(str(stop), stop.code)
    except KeyboardInterrupt:
      processes.end("interrupted; the same command goes on where it can", SIGINT_CODE)
    except Exception as error:
      if isinstance(error, ValueError | OSError) and int(flags.FLAGS["verbosity"].value or 0) <= 0:
        _fail(processes.explain(error))
      if not processes.active():
        raise
      traceback.print_exc()
      _fail(f"{type(error).__name__}: {processes.explain(error)}")

  def parse(argv: list[str]) -> list[str]:
    if _HELP & set(argv[1:]):
      print(_help(sys.modules[main.__module__].__doc__ or ""))
      sys.exit(0)
    return _parse(argv)

  flags.FLAGS.set_gnu_getopt(takes_words)  # flags may also stand behind words
  app.run(guarded, argv=arguments, flags_parser=parse)


def join() -> None:
  """Joins the other processes of the command, if there are any, before any device is touched."""
  processes.initialize(bringup_seconds=_BRINGUP, heartbeat_seconds=_HEARTBEAT)


def config_value(holder: flags.FlagHolder) -> ConfigDict:
  """Returns the config of the command line.

  Raises:
    ValueError: there is none.
  """
  if holder.value is None:
    raise ValueError("no config; give one, for example --config=configs/tiny.py")
  return holder.value


def _help(documentation: str) -> str:
  """Returns the help text of a command: its documentation, and the flags that it defines itself."""
  lines = [documentation.strip(), "", "flags:"]
  for module, found in flags.FLAGS.flags_by_module_dict().items():
    if module == sys.argv[0] or module.split(".")[0] == "launch":
      lines += [_flag_help(flag) for flag in found]
  if "config" in flags.FLAGS:
    lines.append("  --config.KEY=VALUE\n      Another value of a setting; see configs/base.py.")
  lines.append("  --verbosity=1\n      Mistakes are reported with their traceback.")
  return "\n".join(lines)


def _flag_help(flag: flags.Flag) -> str:
  default = (flag.default_as_str or "").strip("'") if flag.default != [] else ""
  name = f"[no]{flag.name}" if flag.boolean else f"{flag.name}={default}"
  usual = f" (default: {default})" if flag.boolean and flag.default else ""
  return f"  --{name}\n      {' '.join((flag.help or '').split()).replace('.;', ';')}{usual}"


def _drop_repeated_reports() -> None:
  """Leaves out what threads print about a failed save, which is reported as one error anyway."""
  logging.get_absl_logger().addFilter(lambda record: "orbax" not in Path(record.pathname).parts)


def _watch_unraisable_errors() -> None:
  """Handles errors that Python cannot raise where they occur, as in a callback of its collector.

  A Ctrl-C that comes while such a callback runs (JAX has one) would be lost: it is delivered again.
  TensorStore's complaint after a failed save is left out. All other errors are reported as usual.
  """
  usual = sys.unraisablehook

  def hook(report: "sys.UnraisableHookArgs") -> None:
    if issubclass(report.exc_type, KeyboardInterrupt):
      again = threading.Timer(_AGAIN, os.kill, (os.getpid(), signal.SIGINT))
      again.daemon = True
      again.start()
    elif str(report.exc_value) != "Event loop is closed":
      usual(report)

  sys.unraisablehook = hook


def _parse(argv: list[str]) -> list[str]:
  """Parses the flags; a command line that cannot be parsed is reported in one line too."""
  for arg in argv:
    path = re.match(r"--?config=([^:]+)", arg)
    if path and not Path(path[1]).is_file():
      _fail(f"{arg}: no such file; configs/ has those that come with resjax")
  try:
    return flags.FLAGS(argv)
  except (flags.Error, AttributeError, KeyError, ValueError, OSError) as error:
    reason = error
    while isinstance(reason, BaseException) and reason.args:  # ml_collections nests them
      reason = reason.args[0]
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    raised_in_config = any(line.startswith("Traceback") for line in lines)
    message = lines[-1] if raised_in_config else str(reason)
    unknown = re.match(r"'(\w+)'", message)
    setting = [arg for arg in argv if unknown and f".{unknown[1]}=" in arg]
    _fail(f"{setting[0]}: {message}" if setting else message)


def _fail(message: object) -> NoReturn:
  processes.end(f"error: {' '.join(str(message).split())}", 1)
