"""How the commands that pages print are run so that each takes seconds on a CPU.

A key is a command with words that stand among its arguments; the longest that fits counts.
"""

import dataclasses
import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from resjax.aot import absent_devices
from tests.helpers import doc_commands, runs, xla
from tests.helpers.fakes import ROOT

_SMALL_STEP = (
  "--config.model.num_layers=4",
  "--config.model.d_model=256",
  "--config.model.head_dim=64",
  "--config.model.mlp_dim=256",
  "--config.data.seq_len=128",
  "--config.data.tokenizer.name=byte",
)
# What is added behind the arguments, of two equal flags the last counts.
ADDED = {
  "train": (),  # --dry_run, see doc_commands.DRY
  "train_together": (
    "--config.model.num_layers=2",
    "--config.model.d_model=32",
    "--config.model.mlp_dim=64",
    "--config.optim.warmup_steps=1",
    "--config.train.steps=2",
    "--config.train.eval_rows=8",
    "--config.train.alignment_every=0",
  ),
  "sweep": ("--print_commands",),
  # Another folder than that of the sweep without seeds.
  "sweep --together=5": ("--print_commands", "--config.workdir=runs/together"),
  "sweep --config.workdir=runs/one_parent": (  # where the reader's folder has finished runs
    "--print_commands",
    "--config.workdir=runs/planned",
  ),
  "sweep --config.workdir=runs/retrofit": ("--print_commands", "--only=standard,gate-alone"),
  "ladder": (),
  "aot": _SMALL_STEP,
  "evaluate": ("--limit=2", "--max_length=64"),
  "analyze": ("--tokens=128",),
  "intervene": ("--tokens=128",),
  "inspect": (),
  "inspect --what=depth": ("--tokens=128", "--seq_len=32", "--vectors=2"),
  "inspect --what=lens": (
    "--tokens=2048",
    "--seq_len=64",
    "--steps=2",
    "--layers=0,-1",
    "--words=16",
  ),
  "generate": ("--num_tokens=2",),
  "export": (),
  # All that is asked for is in the page's results.json, but for the systems that came later.
  "depth_retrieval": ("--systems=standard,gate,attn_res",),
  "depth_retrieval --layers=15": (),
  "bench growth": (
    "--what=layers",
    "--sizes=layers=2,4",
    "--systems=standard",
    "--counted",
    "--page=",
  ),
  "bench systems": ("--only=standard",),
  "bench step": (
    "--layers=2",
    "--layers_per_block=1",
    "--d_model=128",
    "--rows=1",
    "--seq_len=32",
    "--repeats=2",
  ),
  "bench kernels": ("--suites=read", "--shapes=8x128x2", "--repeats=2", "--deadline=0"),
  "bench kernels --network-bytes": (
    "--chips=cpu",
    "--networks=2x2x64x128",
    "--arms=xla_no_stack",
  ),
  "bench kernels --tpu-schedule": ("--chips=v5e",),
  "bench kernels --gpu-compile": ("--chips=h100", "--widths=768"),
}
# Other programs -> the words behind `python`.
SCRIPTS = {
  "resjax --help": lambda words: ("-m", *words),
  "completion": lambda words: ("-m", *words),
  "make": None,  # what `make --dry-run` prints of resjax is run
  "python docs/examples/diff_sizes.py": lambda words: words[1:],
  "python docs/findings/patched_prompts.py": lambda words: words[1:],
  "python -m docs.findings.depth": lambda words: words[1:],
  "python -m docs.findings.moe_order": lambda words: words[1:],
  "python -m docs.systems.public": lambda words: words[1:],
}
# What is not run from a page -> why, and where else.
ELSEWHERE = {
  "make .whl": "downloads what is in launch/bench/gpu_kit.txt, see tests/gpu_kit_test.py",
  "python3 -m pip install": "installs those wheels",
  "bench gpu_day": "minutes also with --dry_run, as in tests/launch/bench/gpu_day_test.py",
  "bench train": "three runs, see tests/launch/bench/train_test.py",
  "python -m pytest": "these tests are in this suite",
  "python -m tests.fuzz": "runs of tests/fuzz/fuzz_test.py differ in the numbers of cases",
  "python docs/examples/dropout_nnx.py": "it trains in tests/examples_test.py",
  "python docs/examples/train_example.py": "an example trains in tests/examples_test.py",
  "python docs/examples/compare_with_transformers.py": (
    "needs torch; tests/interop/huggingface/remote_code/example_test.py runs it"
  ),
  "python docs/findings/depth_in_torch.py": (
    "needs torch; tests/study/analysis/depth_probes_test.py has loops by hand"
  ),
  "python docs/findings/lens_in_torch.py": (
    "needs torch; tests/study/analysis/lens_test.py compares the lens with float64"
  ),
  "python -m docs.comparisons.compiled_shapes": (
    "reads what compilers for absent chips wrote; tests/recompute_test.py has such files"
  ),
  "python -m docs.findings.swept_models": (
    "reads analyses of all runs of a sweep; tests/recompute_test.py makes some"
  ),
  "python3 -m venv": "tests/first_steps_test.py runs it",
  "pip install": "tests/wheel_test.py and tests/first_steps_test.py install the wheel",
  "vllm serve": "a server of another project, which tests do not install",
  "curl": "asks that server",
}


@dataclasses.dataclass(frozen=True)
class Absent:
  """What a command compiles with, where that is not installed.

  Attributes:
    missing: whether it is not installed.
    words: what the command must say then, in one line.
  """

  missing: Callable[[], bool]
  words: str


_NO_LIBTPU = Absent(lambda: importlib.util.find_spec("libtpu") is None, "needs libtpu")
_NO_CUDA = Absent(lambda: absent_devices.missing_for_gpus() is not None, "needs JAX's plugin")
ABSENT = {
  "aot": _NO_LIBTPU,
  "aot --topology=h100-1": _NO_CUDA,
  "aot --topology=h100-8": _NO_CUDA,
  "bench kernels --tpu-schedule": _NO_LIBTPU,
  "bench kernels --gpu-compile": _NO_CUDA,
}

_RUNS = re.compile(r"\bruns/[\w/]+")
_have_run: set[tuple[str, int]] = set()


def key_of(words: Sequence[str]) -> str | None:
  """Returns the key of a command as a page prints it; None: it has no cheap form and no reason."""
  return _key(_keyed(words), {**ADDED, **SCRIPTS, **ELSEWHERE})


def run(words: Sequence[str], cwd: pathlib.Path, num_devices: int = 1) -> None:
  """Runs a command in its cheap form, and raises AssertionError if it fails.

  Of commands that differ in the names of runs alone, which all are one run, the first is run.

  Args:
    words: the command as a page prints it.
    cwd: the folder that it runs in.
    num_devices: how many devices its process has.
  """
  key = key_of(words)
  if key in ELSEWHERE:
    named = [word for word in words if word.startswith(("tests/", "docs/examples/"))]
    assert all((ROOT / path).exists() for path in named), words
  elif (same := (_RUNS.sub("runs/", " ".join(_keyed(words))), num_devices)) in _have_run:
    return
  elif words[0] == "make":
    for line in _of_make(words):
      run(line, cwd)
  elif key in SCRIPTS:
    _run_script(SCRIPTS[key](words), cwd)
  else:
    _run_command(key, words, cwd, num_devices)
    _have_run.add(same)


def _run_command(key: str, words: Sequence[str], cwd: pathlib.Path, num_devices: int) -> None:
  name, arguments = doc_commands.of_resjax(list(words))
  devices = f"{xla.QUICK} --xla_force_host_platform_device_count={num_devices}"
  code, output = doc_commands.run(name, arguments, *ADDED[key], cwd=cwd, XLA_FLAGS=devices)
  absent = ABSENT.get(_key(_keyed(words), ABSENT))
  if absent is not None and absent.missing():
    said = output.splitlines()[-1]
    assert code == 1 and said.startswith("error: ") and absent.words in said, (words, output)
  else:
    assert code == 0, (words, output)


def _run_script(words: Sequence[str], cwd: pathlib.Path) -> None:
  done = subprocess.run(
    [sys.executable, *words],
    cwd=cwd,
    env=runs.environment(PYTHONPATH=ROOT),
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
  )
  assert done.returncode == 0, (words, done.stdout)


_OF_AN_OUTER_MAKE = ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL")


def _of_make(words: Sequence[str]) -> list[list[str]]:
  """Returns the commands of resjax that a call of make would run."""
  # Without the ARGS of the `make test-all` that runs this.
  plain = {name: value for name, value in os.environ.items() if name not in _OF_AN_OUTER_MAKE}
  done = subprocess.run(
    [*words, "--dry-run"], cwd=ROOT, env=plain, text=True, capture_output=True, check=True
  )
  lines = [shlex.split(line) for line in done.stdout.splitlines() if " -m resjax " in line]
  return [["python", *line[1:]] for line in lines]


def _keyed(words: Sequence[str]) -> list[str]:
  """Returns the words of a command as keys have them: those of resjax begin with its name."""
  found = doc_commands.of_resjax(list(words))
  return [found[0], *found[1]] if found else list(words)


def _key(words: Sequence[str], table: Mapping[str, object]) -> str | None:
  """Returns the longest key whose words a command has, those that are no flags in their place."""
  return max((key for key in table if _fits(key.split(), words)), key=len, default=None)


def _fits(wanted: Sequence[str], words: Sequence[str]) -> bool:
  first = [word for word in wanted if not word.startswith("--")]
  return list(words[: len(first)]) == first and set(wanted) <= set(words)
