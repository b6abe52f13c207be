"""How compiled training steps grow with rows, tokens and layers, for any residual system.

The steps are compiled and never run, so that neither a fast machine nor much memory is needed.
"""

import functools
import time
from collections.abc import Iterator, Mapping

import jax
from ml_collections import ConfigDict

from configs import ablations, base
from launch.bench.growth.rows import Asked, Bar, Row, made
from launch.bench.program import hlo, passes
from launch.bench.program.matrix_flops import matrix_flops
from launch.bench.program.parts import DEPTH, LOOPS
from resjax.aot import absent_devices, memory_stats, program_text
from resjax.models import ModelDef
from resjax.train import experiment, program

WIDTH, HEADS = 128, 2
# Where they do not grow; for up to 256 tokens `mhc` is another program on CPUs.
LAYERS, TOKENS, ROWS = 6, 512, 1
INSTRUCTIONS, SECONDS = "instructions", "core seconds to compile"
TEMPORARIES, FLOPS = "bytes of temporaries", "FLOPs of matrix products"
TRAFFIC, MIXING = "bytes moved", "bytes moved by depth mixing"
STATE = "bytes of depth state per token"

_SCANNED = Bar(0, "a scan compiles one layer, however many there are")
_LOOPED = Bar(1, "a Python loop compiles every layer")
_WORK = Bar(1, "as much for each one")
_PAIRS = Bar(2, "attention has T² pairs of tokens")
_SOURCES = Bar(2, "each layer may read all earlier ones")

Figures = Mapping[str, float]


def of_rows(asked: Asked) -> Iterator[Row]:
  """Yields how steps grow with the rows of a batch."""
  for name in asked.systems:
    found = {size: figures(name, LAYERS, TOKENS, size, asked.topology) for size in asked.sizes}
    bars = {INSTRUCTIONS: _same("rows")}
    bars |= dict.fromkeys((TEMPORARIES, TRAFFIC, MIXING, FLOPS), _WORK)
    yield from _rows(asked, "rows", "rows of a batch", name, found, bars)


def of_tokens(asked: Asked) -> Iterator[Row]:
  """Yields how steps grow with the tokens of a row."""
  # For chips attention is a kernel, which keeps no scores.
  kept = _WORK if asked.topology else Bar(2, "attention on a CPU keeps the scores of T² pairs")
  for name in asked.systems:
    found = {size: figures(name, LAYERS, size, ROWS, asked.topology) for size in asked.sizes}
    bars = {INSTRUCTIONS: _same("tokens"), TEMPORARIES: kept, TRAFFIC: _PAIRS}
    bars |= {MIXING: _WORK, FLOPS: _PAIRS}
    yield from _rows(asked, "tokens", "tokens of a row", name, found, bars)


def of_layers(asked: Asked) -> Iterator[Row]:
  """Yields how steps grow with layers."""
  for name in asked.systems:
    found = {size: figures(name, size, TOKENS, ROWS, asked.topology) for size in asked.sizes}
    strategy = _strategy(name)
    work = _WORK if strategy == "carry" else _SOURCES
    bars = {
      INSTRUCTIONS: _LOOPED if strategy == "loop" else _SCANNED,
      STATE: Bar(1, "at most one source per sublayer"),
      TEMPORARIES: Bar(1, "the depth state is kept once per layer"),
      TRAFFIC: work,
      MIXING: work,
      FLOPS: work,
    }
    yield from _rows(asked, "layers", "layers", name, found, bars)


def _same(what: str) -> Bar:
  return Bar(0, f"{what} are a size of arrays in the same program")


def _rows(
  asked: Asked,
  part: str,
  size: str,
  name: str,
  found: Mapping[int, Figures],
  bars: Mapping[str, Bar],
) -> Iterator[Row]:
  command = f"{asked.command} --systems={name}"
  yield from made(part, name, size, found, bars, command, counted=True)
  yield from made(part, name, size, found, {SECONDS: bars[INSTRUCTIONS]}, command)


def _strategy(name: str) -> str:
  run = experiment.build(_config(name, LAYERS, TOKENS, ROWS), jax.devices()[:1])
  return ModelDef(run.decoder, run.layout).combinator.strategy


@functools.cache
def figures(name: str, layers: int, tokens: int, rows: int, topology: str) -> Figures:
  """Compiles the training step of a small decoder, and returns what it costs.

  Args:
    name: the residual system, of configs/ablations.
    layers: L.
    tokens: T.
    rows: B.
    topology: the chip that it is compiled for; "" for this machine.
  """
  devices = absent_devices.describe(topology).devices if topology else jax.devices()
  run = experiment.build(_config(name, layers, tokens, rows), devices[:1])
  programs = program.build(run)
  jax.clear_caches()
  start = time.process_time()
  compiled = programs.lower_train_step().compile()
  seconds = time.process_time() - start
  text = program_text(compiled)
  module = hlo.parse(text)
  parts, _ = passes.traffic(module)
  return {
    SECONDS: seconds,
    INSTRUCTIONS: text.count(" = "),
    TEMPORARIES: memory_stats(compiled).temp_size_in_bytes,
    FLOPS: matrix_flops(module),
    TRAFFIC: sum(moved.total for moved in parts.values()),
    MIXING: parts[DEPTH].total + parts[LOOPS].total,
    STATE: programs.model.combinator.state_bytes_per_token(run.decoder.dtype),
  }


def _config(name: str, layers: int, tokens: int, rows: int) -> ConfigDict:
  config = base.get_config()
  config.model.update(num_layers=layers, d_model=WIDTH, num_heads=HEADS, num_kv_heads=HEADS)
  config.model.update(mlp_dim=2 * WIDTH, remat="full")
  config.data.seq_len = tokens
  config.data.tokenizer.name = "byte"
  config.train.update(batch_size=rows, microbatches=1)
  config.update_from_flattened_dict(dict(ablations.systems())[name])
  return config
