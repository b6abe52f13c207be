"""Settings on the command line, config files, and the flags of all commands."""

import math
import os
import re
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from configs import base
from resjax import combinators
from resjax.study import config_tree
from tests.fuzz import originals
from tests.fuzz.cases import Case, Check, Place, ended_well, must_refuse
from tests.fuzz.forks import ROOT, Done

_VALUES = (
  "", "None", "nan", "inf", "-inf", "1e999", "-1", "0", "1", "2", "3", "0.5", "-0.5", "1e-400",
  "1e30", str(2**31), str(2**63), str(-(2**64)), "1" + "0" * 400, "True", "abc", "[1, 2]", "()",
  "(1,)", "{}", "é", "𝕏", "../elsewhere", "$a_{$", "[/x]", "a\nb", "\x1b[31m", "x" * 5000, "'",
  "%s", "1_000", " 1", "0x10", "1.0", "lambda: 0",
)  # fmt: skip
_LARGE = 64  # a real run takes no larger values, since what is asked for must fit a test

# Strings that may be anything: folders, sources, names.
_FREE = (
  "workdir",
  "root",
  "source",
  "field",
  "folder",
  "init_from",
  "wandb_project",
  "goodput_job",
)
# Options of combinators and of sets of rules that the small run does not have.
_UNUSED = re.compile(r"config\.(model\.residual\.\w+\.|sharding\.(?!name|fsdp_tp))")
_MAY_BE_NEGATIVE = ("config.seed", "config.init_seed", "config.data.order_seed", "config.mesh.")


def _leaves(values: dict[str, Any], prefix: str = "config") -> dict[str, Any]:
  found = {}
  for key, value in values.items():
    inner = _leaves(value, f"{prefix}.{key}") if isinstance(value, dict) else {}
    found |= inner or {f"{prefix}.{key}": value}
  return found


_CONFIG = base.get_config()
for _name in combinators.names(shipped=True):
  config_tree.add_system(_CONFIG.model.residual, _name)
_LEAVES = _leaves(_CONFIG.to_dict())


@st.composite
def override(draw: st.DrawFn, original: Path) -> Case:
  """Draws a setting of the command line: an unknown key, or a hostile value of a known one."""
  value = draw(st.sampled_from(_VALUES))
  key = draw(st.sampled_from(sorted(_LEAVES)))
  right: Check = _judge_value(key, value)
  if draw(st.integers(0, 5)) == 0:
    key = draw(
      st.sampled_from(
        [f"{key}.x", f"{key}x", key.rsplit(".", 1)[0], "config.extra", "config.", "config.é",
         "confg.seed", "config.model.__class__", "config.data.corpora.x.source", key.upper()]
      )
    )  # fmt: skip
    right = must_refuse
  words = (key.rsplit(".", 1)[-1], *key.split(".")[-2:-1], "config")
  command = draw(st.sampled_from(["dry_run", "dry_run", "build_dataset", "sweep", "real"]))
  flag = f"--{key}={value}"
  case = {"kind": "override", "what": f"{flag[:80]} ({command})", "names": words, "right": right}
  if command == "build_dataset":
    if not key.startswith("config.data"):
      case["right"] = ended_well
    return Case(command="build_dataset", arguments=(*originals.BUILD, flag), **case)
  if command == "sweep":
    sweep = (f"--config={ROOT}/configs/ablations/compare.py", flag, "--print_commands")
    return Case(command="sweep", arguments=sweep, **case | {"right": ended_well})
  arguments = (*originals.training(workdir="out", train__steps=2), flag)
  if command == "real" and _small(value):
    # A run may lie wherever its user says, in the place of the case.
    named = (value.split("/")[0],) if key in ("config.workdir", "config.data.root") else ()
    return Case(
      command="train",
      arguments=arguments,
      writes=("out", "data", *named),
      **case,
    )
  return Case(command="train", arguments=(*arguments, "--dry_run"), **case)


def _small(value: str) -> bool:
  try:
    return abs(float(value)) <= _LARGE or not math.isfinite(float(value))
  except ValueError:
    return True


def _judge_value(key: str, value: str) -> Check:
  """Returns the check that a setting of this value may be accepted at all."""

  def check(place: Place, done: Done) -> str:
    del place, done
    if _UNUSED.match(key):
      return ""
    default, name = _LEAVES[key], key.rsplit(".", 1)[-1]
    if isinstance(default, str):
      listed = name not in _FREE and name != "compiler_options"
      if listed or (name in ("workdir", "root") and not value):
        return f"{key} accepted {value[:60]!r}"
      return ""
    if isinstance(default, bool) or not isinstance(default, int | float):
      return ""
    try:
      # The flags' parser knows hexadecimal integers, too.
      number = int(value, 16) if value.startswith("0x") else float(value)
    except ValueError:
      return f"{key} accepted {value[:60]!r}"
    if not math.isfinite(number):
      return f"{key} accepted {value[:60]!r}"
    if number < 0 and not key.startswith(_MAY_BE_NEGATIVE):
      return f"{key} accepted {value[:60]!r}"
    return ""

  return check


_HEAD = "from configs import tiny\ndef get_config():\n  c = tiny.get_config()\n"
_FILES = {
  "no get_config": "x = 1\n",
  "empty": "",
  "syntax": "def get_config(:\n",
  "raises": "def get_config():\n  raise RuntimeError('two\\nlines')\n",
  "raises KeyError": "def get_config():\n  return {}['a']\n",
  "returns None": "def get_config():\n  return None\n",
  "returns dict": "def get_config():\n  return {'model': 1}\n",
  "returns number": "def get_config():\n  return 3\n",
  "empty config": "import ml_collections as m\ndef get_config():\n  return m.ConfigDict()\n",
  "no import": "import a_module_that_is_not_there\n",
  "recursion": "def get_config():\n  return get_config()\n",
  "assertion": "assert False\n",
  "no argument": "def get_config(style):\n  return None\n",
  "tabs": "def get_config():\n\tif 1:\n        return 1\n",
  "nul": "x = '\0'\n",
  "latin-1": "# é\n",
  "get_config is no function": "get_config = 1\n",
  "sweep raises": _HEAD + "  return c\ndef sweep(c):\n  raise ValueError('a\\nb')\n",
  "sweep yields words": _HEAD + "  return c\ndef sweep(c):\n  yield 'x'\n",
  "sweep yields nothing": _HEAD + "  return c\ndef sweep(c):\n  return []\n",
  "sweep of unknown keys": _HEAD + "  return c\ndef sweep(c):\n  yield 'a', {'a.b': 1}\n",
  "sweep returns None": _HEAD + "  return c\ndef sweep(c):\n  pass\n",
}  # fmt: skip


@st.composite
def config_file(draw: st.DrawFn, original: Path) -> Case:
  """Draws a file for --config: one that fails, or a config with a hostile value in it."""
  how = draw(st.sampled_from(["value", "value", "value", "file", "file", "file", "place"]))
  command, more = draw(
    st.sampled_from(
      [("train", ("--dry_run",)), ("build_dataset", ()), ("aot", ()),
       ("sweep", ("--print_commands",))]
    )
  )  # fmt: skip
  name = "hostile.py"
  right: Check = must_refuse
  content = b""
  if how == "file":
    what = draw(st.sampled_from(sorted(_FILES)))
    content = _FILES[what].encode("latin-1" if what == "latin-1" else "utf-8")
    if what.startswith("sweep"):
      command, more = "sweep", ("--print_commands",)
  elif how == "place":
    what = name = draw(
      st.sampled_from(
        ["", "text", "missing.py", "hf/config.json", "é.py", "a b.py", "x:y", "/dev/null"]
      )
    )  # fmt: skip
  else:
    key = draw(st.sampled_from(sorted(_LEAVES)))
    value = draw(
      st.sampled_from(
        ["None", "'x'", "[]", "{}", "(1, 'a')", "float('nan')", "float('inf')", "-1", "10**30",
         "object()", "lambda: 0", "b'x'", "True", "1j", "{1: 2}", "set()"]
      )
    )  # fmt: skip
    what = f"{key}={value}"
    settings = "".join(
      f"  c.{setting[9:].split('=')[0]} = {setting.split('=', 1)[1]!r}\n"
      for setting in originals.BUILD[1:4]
    )
    body = f"{settings}  with c.ignore_type():\n    {key.replace('config.', 'c.', 1)} = {value}\n"
    content = (_HEAD + body + "  return c\ndef sweep(c):\n  yield 'a', {'seed': 1}\n").encode()
    right = _judge_value(key, value) if value in ("-1",) else ended_well
    if command in ("sweep", "build_dataset"):
      right = ended_well
  content_given = how != "place"

  def damage(place: Place) -> None:
    if content_given:
      place.path(name).write_bytes(content)

  return Case(
    kind="config_file",
    command=command,
    arguments=(f"--config={name}", *more),
    what=f"{how}: {what} ({command})",
    damage=damage,
    right=right,
  )


_COMMANDS = {
  "generate": originals.GENERATE,
  "export": originals.EXPORT,
  "intervene": originals.INTERVENE,
  "analyze": originals.ANALYZE,
  "evaluate": (*originals.EVALUATE, "--text=own=text"),
  "inspect": originals.INSPECT,
  "build_dataset": originals.BUILD,
  "train": (*originals.training(), "--dry_run"),
  "sweep": (
    f"--config={ROOT}/configs/ablations/compare.py",
    "--print_commands",
  ),
  "aot": originals.training(),
}
_FLAGS = {
  "generate": ["num_tokens", "temperature", "top_k", "top_p", "stop", "seed", "num_samples",
                      "workdir", "bos"],
  "export": ["checkpoint", "out", "dtype", "shard_gb"],
  "intervene": ["alphas", "layers", "sites", "out", "hf", "data", "data_format",
                       "data_field", "tokens", "seq_len", "batch_size", "fsdp", "tensor",
                       "checkpoint", "bos"],
  "analyze": ["out", "text", "every", "readings", "sensitivity", "hf", "data", "tokens",
                     "seq_len", "batch_size", "checkpoint", "bos"],
  "evaluate": ["out", "text", "stride", "limit", "max_length", "bos", "hf", "checkpoint",
                      "batch_size", "data_format", "data_field"],
  "inspect": ["what", "out", "text", "answer", "corrupted", "every", "steps",
                     "learning_rate", "hf", "checkpoint", "fsdp", "tensor", "bos"],
  "build_dataset": ["config", "x"],
  "train": ["profile_steps", "bringup_seconds", "heartbeat_seconds", "dry_run", "config"],
  "sweep": ["only", "config", "collect"],
  "aot": ["topology", "num_slices", "devices", "out"],
}  # fmt: skip
_FLAG_VALUES = (
  *_VALUES, "1:2", "5:1", "0:0", "-1:3", "1:x", ":", ",", "0,,1", "1,2,3", "-1,-2", "attention",
  "a_pipe", "a_pipe/x", "/proc/x", "run", "hf", "text", "victim", "out", "missing", "é/é",
  "python-stdlib/x", "tfds:", "tfds:mnist/x/y", "gs://", "gs://b", "s3://b/c", "http://x",
  "v5e-256x", "v5e:0x0", "v5e:-1x4", "h100", "h100-0", "h100--8", "v5e-99999999999", "**/*",
  "[", "text/*.txt",
)  # fmt: skip
# Values that may need more than a test has, or that leave the machine.
_NOT_TRIED = {
  "tokens", "seq_len", "batch_size", "num_tokens", "num_samples", "max_length", "steps",
}  # fmt: skip


def _judge_flag(name: str, value: str) -> Check:
  """Returns the check that a flag may have a value, and that a pipe was not replaced by a file."""
  numbers = {"temperature", "top_p", "shard_gb", "alphas"}
  infinite = value in ("nan", "inf", "-inf", "1e999")
  if name in numbers and infinite:
    return must_refuse

  def check(place: Place, done: Done) -> str:
    del done
    return "" if place.path("a_pipe").is_fifo() else "a pipe was replaced by a file"

  return check


@st.composite
def flag(draw: st.DrawFn, original: Path) -> Case:
  """Draws a flag of a command with a hostile value, or one that the command does not have."""
  command = draw(st.sampled_from(sorted(_COMMANDS)))
  name = draw(st.sampled_from(_FLAGS[command]))
  value = draw(st.sampled_from(_FLAG_VALUES))
  if name in _NOT_TRIED and not _small(value) and float(value) < 1e18:
    value = "-7"
  words: tuple[str, ...] = () if command == "aot" else (name, value[:40])
  given = f"--{name}={value}"
  if draw(st.integers(0, 9)) == 0:
    given, words = draw(st.sampled_from(["--unknown=1", "word", "-x", "--", "--=1", "---"])), ()

  def damage(place: Place) -> None:
    os.mkfifo(place.path("a_pipe"))

  return Case(
    kind="flag",
    damage=damage,
    command=command,
    arguments=(*_COMMANDS[command], given),
    what=f"{command} {given[:80]!r}",
    names=words,
    right=_judge_flag(name, value) if given.startswith(f"--{name}=") else ended_well,
    writes=("out", value.split("/")[0]) if name == "out" else ("out",),
  )
