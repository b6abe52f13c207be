"""What all commands share: the config flag, `--help`, and every error as one line."""

import contextlib
import io
import logging as python_logging
import os
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from absl import app, flags, logging
from ml_collections import ConfigDict
from ml_collections.config_flags import config_flags

from resjax.base import processes, ranges, redaction
from resjax.base.processes import SIGINT_CODE, Interrupted, raising_ctrl_c
from resjax.cli import errors, help_text, interrupts, outside, shipped, workdir_flag

_Number = TypeVar("_Number", int, float)
# Seconds for which processes wait for each other: at the start, and for a sign of life.
_BRINGUP, _HEARTBEAT = 300, 100
_HELP = {"-h", "--h", "-help", "--help", "-helpshort", "--helpshort"}
_PIPE_CODE = 141  # the exit code that shells give a command whose reader has gone: 128 + SIGPIPE
_INTERRUPTED = "interrupted; the same command goes on where it can"

_FIGURES = flags.DEFINE_multi_enum(
  "figures", None, ["svg", "pdf"], "Kinds of files of figures, beside PNG; may be given twice."
)
_DEBUG = flags.DEFINE_bool("debug", False, "Errors are reported with their traceback.")
_CHECK = flags.DEFINE_bool(
  "check_flags", False, "Only parse the command line; nothing is said where it is right."
)


class _ConfigParser(outside.ConfigParser):
  """Loads a config by its path, or one that comes with resjax by its name."""

  def parse(self, path: str) -> Any:
    name, *argument = path.split(":", 1)
    file = shipped.config_file(name)
    with shipped.imports_of(file):
      return super().parse(":".join([str(file), *argument]))


def define_config(
  help_text: str, values: flags.FlagValues = flags.FLAGS, argv: list[str] | None = None
) -> flags.FlagHolder:
  """Defines --config=NAME[:ARGUMENT], and --config.KEY=VALUE for each of its settings.

  `run` takes --workdir for --config.workdir.

  Args:
    help_text: what the config is for.
    values: the flags to which it is added.
    argv: the command line that will be parsed; None: this process's.
  """
  holder = config_flags.DEFINE_config_file(
    "config", None, help_text, flag_values=values, lock_config=True, sys_argv=argv
  )
  values["config"].parser = _ConfigParser("config")
  return holder


def figures() -> list[str]:
  """Returns the flags of this command that say as what figures are written."""
  return [f"--figures={kind}" for kind in _FIGURES.value or []]


def run(
  main: Callable[..., None],
  takes_words: bool = False,
  folder: Callable[[], str | None] = lambda: None,
) -> NoReturn:
  """Runs a command and ends the process.

  Every error prints one line and exits with 1. An error that is not the user's is written with its
  traceback to error.log in the folder of the run, or to a file that the line names; with --debug
  the traceback is printed too. Ctrl-C exits with 130, SIGTERM with 0, and output that nobody reads
  any more with 141. If one of several processes ends, all of them end. --help prints the docstring
  and the flags of the command, and exits with 0.

  Args:
    main: the command. It takes no arguments, or with `takes_words` two lists: the words of the
      command line that are no flags, and what follows `--`.
    takes_words: whether the command line may hold words that are no flags.
    folder: returns the folder of the run that the command writes to; None: it writes to none.
  """
  if "config" in flags.FLAGS and "workdir" not in flags.FLAGS:
    sys.argv[:] = workdir_flag.spelled_out(sys.argv)
  end = sys.argv.index("--") if takes_words and "--" in sys.argv else len(sys.argv)
  arguments, after = sys.argv[:end], sys.argv[end + 1 :]
  _prepare()

  def checked(argv: list[str]) -> None:
    if len(argv) > 1 and not takes_words:
      raise ValueError(f"unexpected argument {argv[1]!r}; {_looks()}")
    outside.import_all()
    if _FIGURES.value:
      os.environ["RESJAX_FIGURES"] = ",".join(_FIGURES.value)  # `WANTED` of plots.py
    if _CHECK.value:
      if "config" in flags.FLAGS:
        config_value(flags.FlagHolder(flags.FLAGS, flags.FLAGS["config"]))
      return
    main(*([argv[1:], after] if takes_words else []))

  def work(argv: list[str]) -> None:
    _guarded(lambda: checked(argv), folder)

  def parse(argv: list[str]) -> list[str]:
    if _HELP & set(argv[1:]):
      documentation = sys.modules[main.__module__].__doc__ or ""
      _guarded(lambda: print(help_text.of_command(documentation)), folder)
      sys.exit(0)
    return _parse(argv)

  flags.FLAGS.set_gnu_getopt(takes_words)  # flags may also stand behind words
  try:
    app.run(work, argv=arguments, flags_parser=parse)
  except KeyboardInterrupt:  # a config file may take its time
    processes.end(_INTERRUPTED, SIGINT_CODE)


def run_words(main: Callable[[list[str]], None]) -> None:
  """Runs a command that reads its command line itself, where every error is one line as in `run`.

  Args:
    main: the command, which takes all words of the command line.
  """
  _prepare()
  flags.FLAGS([sys.argv[0], *(word for word in sys.argv[1:] if word == "--debug")])
  _guarded(lambda: main(sys.argv[1:]), lambda: None)


def _prepare() -> None:
  """Lets names that are no UTF-8 be printed, to nowhere if a stream is closed, and Ctrl-C raise."""
  for name in ("stdout", "stderr"):
    if getattr(sys, name) is None:
      nowhere = os.open(os.devnull, os.O_WRONLY)
      setattr(sys, name, os.fdopen(nowhere, "w"))  # open as long as the process lives
  for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(errors="backslashreplace")
  if signal.getsignal(signal.SIGINT) is interrupts.end_imports:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _guarded(work: Callable[[], None], folder: Callable[[], str | None]) -> None:
  """Does the work of a command, and ends the process as `run` says where that fails."""
  _watch_threads()
  if not flags.FLAGS["verbosity"].present:
    logging.set_verbosity(logging.WARNING)  # libraries log every step as info
    _drop_repeated_reports()
  try:
    with raising_ctrl_c():
      work()
    sys.stdout.flush()
  except Interrupted as stop:
    if stop.agreed:
      processes.shutdown()
    processes.end(str(stop), stop.code)
  except KeyboardInterrupt:
    processes.end(_INTERRUPTED, SIGINT_CODE)
  except Exception as error:
    if isinstance(error, BrokenPipeError) and _nobody_reads():
      _end_unread()
    _report(error, folder)


def join() -> None:
  """Joins the other processes of the command, if there are any, before any device is touched."""
  processes.initialize(bringup_seconds=_BRINGUP, heartbeat_seconds=_HEARTBEAT)


def config_value(holder: flags.FlagHolder) -> ConfigDict:
  """Returns the config of the command line.

  Raises:
    ValueError: there is none, or the file makes something else.
  """
  if holder.value is None:
    raise ValueError("no config; give one, for example --config=tiny")
  if not isinstance(holder.value, ConfigDict):
    path = config_flags.get_config_filename(flags.FLAGS[holder.name])
    kind = type(holder.value).__name__
    raise ValueError(f"{path}: get_config() must return a ConfigDict, and returns {kind}")
  return holder.value


def numbers(
  flag: flags.FlagHolder, kind: Callable[[str], _Number], example: str = "0,1"
) -> list[_Number]:
  """Returns the numbers of a flag that is a list.

  Raises:
    ValueError: an item is none; the message has the example.
  """
  try:
    return [kind(item) for item in flag.value]
  except ValueError:
    given = ",".join(flag.value)
    raise ValueError(
      f"--{flag.name}={given} must be numbers with commas between them, such as {example}"
    ) from None


def check_text(text: str, flag: str) -> None:
  """Raises ValueError if the text of a flag is no UTF-8."""
  if not ranges.is_utf8(text):
    raise ValueError(f"{flag}={text!r} is no UTF-8")


def config_workdir() -> str | None:
  """Returns the workdir of --config if it is a local folder, for `run`."""
  workdir = getattr(flags.FLAGS.config, "workdir", None)
  return workdir if isinstance(workdir, str) and workdir and os.path.isdir(workdir) else None


def _drop_repeated_reports() -> None:
  """Silences messages of threads and object stores about errors that are reported in one line."""
  python_logging.getLogger("gcsfs").setLevel(python_logging.CRITICAL)  # tracebacks of each request
  logging.get_absl_logger().addFilter(lambda record: "orbax" not in Path(record.pathname).parts)


def _watch_threads() -> None:
  """Handles errors that nobody can catch: of threads, and of finalizers and callbacks.

  An error of a thread is one line, as others are. TensorStore's complaint after a failed save is
  left out. All other errors are reported as usual.
  """
  usual, usual_of_threads = sys.unraisablehook, threading.excepthook

  def hook(report: "sys.UnraisableHookArgs") -> None:
    if str(report.exc_value) != "Event loop is closed":
      usual(report)

  def thread_hook(report: threading.ExceptHookArgs) -> None:
    if _DEBUG.value or not isinstance(report.exc_value, Exception):
      usual_of_threads(report)
    else:
      print(_line(report.exc_value, lambda: None), file=sys.stderr)

  sys.unraisablehook, threading.excepthook = hook, thread_hook


def _nobody_reads() -> bool:
  """Returns whether the reader of the standard output is gone, as `head` is after ten lines."""
  try:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))
  except (OSError, ValueError):  # it is closed, or no file
    return False


def _end_unread() -> NoReturn:
  """Ends the command without a word, as others end that write into a pipe."""
  nothing = os.open(os.devnull, os.O_WRONLY)
  os.dup2(nothing, sys.stdout.fileno())  # what is left in the buffer goes there
  if processes.active():
    processes.end("nobody reads the output any more; the same command goes on", _PIPE_CODE)
  os._exit(_PIPE_CODE)


def _report(error: Exception, folder: Callable[[], str | None]) -> NoReturn:
  """Prints an error as one line, and with --debug the traceback before it; ends the process."""
  if _debug():
    text = "".join(traceback.format_exception(error))
    print(redaction.text(text), end="", file=sys.stderr)
  processes.end(_line(error, folder), 1)


def _line(error: Exception, folder: Callable[[], str | None]) -> str:
  line, is_user_error = errors.explain(error)
  if not is_user_error:
    written = errors.write_log(error, _existing(folder))
    line += f"; traceback in {written}" if written else ""
  return f"error: {errors.one_line(line)}"


def _existing(folder: Callable[[], str | None]) -> str | None:
  with contextlib.suppress(Exception):  # another error must not hide the one that is reported
    return folder()
  return None


def _debug() -> bool:
  """Returns whether --debug is given, also where the command line could not be parsed."""
  return bool(_DEBUG.value) if flags.FLAGS.is_parsed() else "--debug" in sys.argv


def _parse(argv: list[str]) -> list[str]:
  """Parses the flags; a command line that cannot be parsed is reported in one line too."""
  logging.set_verbosity(logging.ERROR)  # ml_collections warns of what becomes an error here
  path = ""
  for arg in argv:
    if found := re.match(r"--?config=([^:]+)", arg):
      try:
        path = str(shipped.config_file(found[1]))
      except ValueError as error:
        _fail(f"--config={error}")
  try:
    return flags.FLAGS(argv)
  except (Exception, SystemExit) as error:
    if _debug():
      traceback.print_exc()
    where = _where_config_failed(error, path)
    if isinstance(error, SystemExit) and not where:
      raise
    _fail(where or _what_is_wrong(error, argv))


def _where_config_failed(error: BaseException, path: str) -> str | None:
  """Returns file, line and error where the config file failed, None where it did not."""
  if not path:
    return None
  if isinstance(error, SyntaxError):
    return f"{error.filename or path}:{error.lineno or 1}: {error.msg}"
  if str(error).endswith("has no attribute 'get_config'"):
    return f"{path} has no function get_config(), which returns the settings"
  # ml_collections turns errors of some kinds into a text that has the traceback.
  nested = [
    (file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(error))
  ]
  place = errors.users_place(error, nested)
  said = " ".join(str(error).split())
  if nested:
    last = re.split(r"^(?=\w[\w.]*: )", str(error), flags=re.MULTILINE)[-1]
    said = " ".join(last.removeprefix("ValueError: ").split())
    if not place:  # its get_config cannot be called as it is
      return f"{path}: {said}"
  if not place:
    return None
  if not nested and not isinstance(error, ValueError | OSError):
    said = f"{type(error).__name__}: {said}" if said else type(error).__name__
  return f"{place}: {said}"


def _looks() -> str:
  """Returns how the words of a command line look."""
  if "config" in flags.FLAGS:
    return "settings look like --config.train.steps=2"
  return "flags look like --NAME=VALUE, and --help lists them"


def _what_is_wrong(error: BaseException, argv: list[str]) -> str:
  """Returns in words which flag or setting cannot be parsed."""
  if isinstance(error, flags.UnrecognizedFlagError) and "Did you mean" not in str(error):
    return f"{error}; {_looks()}"
  reason: BaseException | object = error
  while isinstance(reason, BaseException) and reason.args:  # ml_collections nests them
    reason = reason.args[0]
  message = " ".join(str(reason).split())
  unknown = re.match(r"'(\w+)'(.*)", message)
  settings = [arg for arg in argv if unknown and re.search(rf"\.{unknown[1]}[.=]", arg)]
  if unknown and settings:
    hint = unknown[2].lstrip(" ;.")
    return f"{settings[0]}: there is no setting {unknown[1]!r}{'; ' * bool(hint)}{hint}"
  overrides = [arg for arg in argv if re.match(r"--?config\.", arg)]
  names_flag = message.startswith("flag --")
  if (
    overrides
    and not names_flag
    and not any(arg.partition("=")[0].lstrip("-") in message for arg in overrides)
  ):
    if "indices must be" in message:
      message = "a list has no settings of its own; give the whole list"
    return f"{' or '.join(overrides)}: {message}"
  return message


def _fail(message: object) -> NoReturn:
  processes.end(f"error: {errors.one_line(str(message))}", 1)
