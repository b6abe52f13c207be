"""How what is measured here grows: builds of data, decoding, checkpoints, sweeps, evaluation.

Each figure is of a whole process, most of them of another benchmark.
"""

import functools
import json
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.bench import whole_process
from launch.bench.growth import text
from launch.bench.growth.rows import Asked, Bar, Row, made
from launch.bench.whole_process import Used
from resjax import combinators

CORE_SECONDS, PEAK = "core seconds", "bytes of memory at the peak"
_AGAIN, _PACKED = "core seconds of the same build again", "core seconds with rows of another length"
_OVER, _PAGE = "core seconds over those of its runs alone", "core seconds of tables and figures"
_LEAST_RATIO = 0.85
_BYTES_PER_PARAMETER = 12  # of a train state: the parameter and two moments in float32

_HERE = Path(__file__).parents[3]
_LIBRARY = Path(sysconfig.get_path("stdlib"))
_LIMIT = 4 * 3600  # seconds of a process
_WORK = Bar(1, "as much for each one")
_TEXT = Bar(1, "every byte is read")
_FLAT = Bar(0, "text is read and written piece by piece")
_SMALL = {
  "model.num_layers": 2, "model.d_model": 32, "model.mlp_dim": 64, "data.tokenizer.name": "byte",
  "optim.warmup_steps": 1, "train.steps": 2, "train.eval_rows": 8,
}  # fmt: skip

Costs = Mapping[str, float]


def of_data(asked: Asked) -> Iterator[Row]:
  """Yields how builds of data grow with the text."""

  def costs(megabytes: int, place: Path) -> Costs:
    text.write(place / "text", megabytes, _LIBRARY)
    settings = {"data.root": place / "data", "data.corpora.stdlib.source": place / "text"}
    build = functools.partial(_resjax, "build_dataset", "--config=base")
    first = build(*_flags(settings))
    again = build(*_flags(settings))
    packed = build(*_flags(settings | {"data.seq_len": 512}))
    return {
      CORE_SECONDS: first.core_seconds,
      PEAK: first.peak_bytes,
      _AGAIN: again.core_seconds,
      _PACKED: packed.core_seconds,
    }

  bars = {CORE_SECONDS: _TEXT, PEAK: _FLAT, _AGAIN: _TEXT, _PACKED: _TEXT}
  yield from made(
    "data", "build_dataset", "MB of text", _each(asked.sizes, costs), bars, asked.command
  )


def of_decode(asked: Asked) -> Iterator[Row]:
  """Yields how a decoded token grows with the tokens in the cache."""
  names = [name for name in asked.systems if name in combinators.names()]
  words = ["--config=tiny", f"--residuals={','.join(names)}", "--repeats=20"]
  words += [f"--topology={asked.topology}"] if asked.topology else []
  reports = {size: _report("decode", *words, f"--tokens={size}") for size in asked.sizes}
  unit = reports[asked.sizes[0]]["unit"]
  for name in names:
    found = {size: {unit: report["cost"][name]} for size, report in reports.items()}
    bars = {unit: Bar(1, "a token reads the keys and values of all before it")}
    command = " ".join(["resjax bench decode", *words, "--tokens=SIZE"])
    counted = bool(asked.topology)
    yield from made("decode", name, "tokens in the cache", found, bars, command, counted)


def of_prefill(asked: Asked) -> Iterator[Row]:
  """Yields how the prefill of a prompt grows with its tokens."""
  words = ["--layers=4", "--d_model=256", f"--lengths={','.join(map(str, asked.sizes))}"]
  cases = _report("prefill", *words)["cases"]
  time, memory = "milliseconds", "bytes of temporaries"
  found = {}
  for size in asked.sizes:
    case = cases[str(size)]
    found[size] = {time: case["resjax"]["median_ms"], memory: case["temporary_bytes"]}
  bars = {time: Bar(2, "attention has T² pairs of tokens")}
  command = " ".join(["resjax bench prefill", *words])
  yield from made("prefill", "standard", "tokens of the prompt", found, bars, command)
  bars = {memory: Bar(1, "queries go chunk by chunk")}
  yield from made("prefill", "standard", "tokens of the prompt", found, bars, command, counted=True)


def of_checkpoint(asked: Asked) -> Iterator[Row]:
  """Yields how a checkpoint grows with the parameters."""
  seconds = {
    "seconds blocked": "blocking_seconds",
    "seconds until on disk": "total_seconds",
    "seconds to restore and verify": "restore_and_verify_seconds",
  }

  def costs(millions: int, place: Path) -> Costs:
    words = [f"--megabytes={_BYTES_PER_PARAMETER * millions}", "--repeats=3"]
    used = _resjax("bench", "checkpoint", *words, f"--folder={place}")
    report = json.loads(used.said)
    return {name: report[key] for name, key in seconds.items()} | {PEAK: used.peak_bytes}

  bars = dict.fromkeys([*seconds, PEAK], _WORK)
  size, command = "million parameters", asked.command
  yield from made(
    "checkpoint", "float32 and moments", size, _each(asked.sizes, costs), bars, command
  )


def of_sweep(asked: Asked) -> Iterator[Row]:
  """Yields how a sweep of short runs grows with their number."""
  with tempfile.TemporaryDirectory() as folder:
    place = Path(folder)
    text.write(place / "text", 1, _LIBRARY)
    data = {"data.root": place / "data", "data.corpora.stdlib.source": place / "text"}
    shared = ["--config=ablations/compare", *_flags(_SMALL | data)]
    variables = {
      "JAX_COMPILATION_CACHE_DIR": str(place / "programs"),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    run = functools.partial(_resjax, variables=variables)
    for name in ("first", "alone"):  # the first one builds data and programs
      alone = run("train", *shared, *_flags({"workdir": place / name}))
    found = {}
    for size in asked.sizes:
      words = [*shared, "--only=standard", f"--seeds={','.join(map(str, range(size)))}"]
      words += _flags({"workdir": place / str(size)})
      whole, page = run("sweep", *words), run("sweep", *words, "--collect")
      found[size] = {
        CORE_SECONDS: whole.core_seconds,
        _OVER: whole.core_seconds / (size * alone.core_seconds),
        _PAGE: page.core_seconds,
      }
  bars = {CORE_SECONDS: _WORK, _OVER: Bar(0, "runs do not know of each other"), _PAGE: _WORK}
  yield from made("sweep", "runs of two steps", "runs", found, bars, asked.command)


def of_score(asked: Asked) -> Iterator[Row]:
  """Yields the speed of the scorer of evaluations beside a plain pass, by the length of rows."""
  words = ["--layers=4", "--d_model=256"]  # fewer batches than by default are not full
  reports = {size: _report("score", *words, f"--max_length={size}") for size in asked.sizes}
  command = " ".join(["resjax bench score", *words, "--max_length=SIZE"])
  ratio = "tokens per second over a plain pass"
  for side in ("text", "choices"):
    found = {size: {ratio: report["ratio"][side]} for size, report in reports.items()}
    bars = {ratio: Bar(None, "the scorer is that pass", _LEAST_RATIO)}
    yield from made("score", side, "tokens of a row", found, bars, command)


def _each(sizes: Sequence[int], costs: Callable[[int, Path], Costs]) -> Mapping[int, Costs]:
  """Returns the costs of each size, which are measured in an empty folder."""
  found = {}
  for size in sizes:
    with tempfile.TemporaryDirectory() as place:
      found[size] = costs(size, Path(place))
  return found


def _report(name: str, *words: str) -> dict[str, Any]:
  """Returns what another benchmark prints."""
  with tempfile.TemporaryDirectory() as out:
    return json.loads(_resjax("bench", name, *words, f"--out={out}").said)


def _resjax(*words: str, variables: Mapping[str, str] | None = None) -> Used:
  """Runs a command of resjax in a process of its own."""
  return whole_process.run([sys.executable, "-m", "resjax", *words], _HERE, variables or {}, _LIMIT)


def _flags(settings: Mapping[str, object]) -> list[str]:
  return [f"--config.{key}={value}" for key, value in settings.items()]
