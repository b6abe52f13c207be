"""Times the training step of a decoder with standard and with other combinators, in turn.

  resjax bench step                                   (1.2B parameters, one 80 GB GPU)
  resjax bench step --model=gpt2_124m --rows=128 --microbatches=2
  resjax bench step --model=tiny --residuals=standard,mhc,plain --rows=8    (a CPU)
  resjax bench step --layers=2 --d_model=128 --rows=1 --seq_len=64   (for trying it out)

A step is a forward pass, a reverse pass and the optimizer on random tokens: of a dense decoder with
the sizes of the flags, or of --model=NAME, the decoder of configs/NAME.py on one device. The name
`plain` in --residuals is a minimal decoder of the same sizes in plain jnp. All models are in memory
at once. A sample is the wall time of `--steps` consecutive steps over their number, which hides the
time to launch them; `core_ms` is the time of all cores of this process instead. The command prints
one JSON object, and writes it to --out.
"""

import jax
from absl import flags
from ml_collections import ConfigDict

from configs import base
from launch.bench import timed_step
from launch.bench.report import write_report
from resjax.cli import command
from resjax.train.runs import Run

DENSE = "dense"
_MODEL = flags.DEFINE_enum(
  "model", DENSE, [DENSE, "tiny", "gpt2_124m", "llama_1p3b"], "What is trained."
)
_RESIDUALS = flags.DEFINE_list("residuals", ["standard", "block_attn_res"], "Combinators.")
_MICROBATCHES = flags.DEFINE_integer("microbatches", 1, "Parts of a batch.", lower_bound=1)
_LAYERS = flags.DEFINE_integer("layers", 24, "Layers.", lower_bound=1)
_PER_BLOCK = flags.DEFINE_integer("layers_per_block", 3, "Layers of a depth block.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("d_model", 2048, "Width; a multiple of 128.", lower_bound=128)
_ROWS = flags.DEFINE_integer("rows", 4, "Number of rows of a batch.", lower_bound=1)
_LENGTH = flags.DEFINE_integer("seq_len", 2048, "Number of tokens of a row.", lower_bound=2)
_REMAT = flags.DEFINE_enum("remat", "full", ["none", "full", "dots"], "What a layer recomputes.")
_STEPS = flags.DEFINE_integer("steps", 3, "Number of steps of a sample.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 20, "Samples of each combinator.", lower_bound=1)

HEAD = 128
_TOLD = (
  _MODEL, _LAYERS, _PER_BLOCK, _WIDTH, _ROWS, _MICROBATCHES, _LENGTH, _REMAT,
)  # fmt: skip


def main() -> None:
  """Prints milliseconds per step of each combinator, and their ratio."""
  runs = {name: _run(name) for name in _RESIDUALS.value}
  report = {
    "device": jax.devices()[0].device_kind,
    "devices": jax.device_count(),
    "jax": jax.__version__,
    "flags": {flag.name: flag.value for flag in _TOLD},
  }
  report |= timed_step.compare(runs, _STEPS.value, _REPEATS.value)
  write_report(report, "step")


def _run(name: str) -> Run:
  config = _dense(name) if _MODEL.value == DENSE else timed_step.config_of(_MODEL.value, name)
  return timed_step.with_batch(config, _ROWS.value, _MICROBATCHES.value)


def _dense(name: str) -> ConfigDict:
  config = base.get_config()
  heads = _WIDTH.value // HEAD
  config.model.update(num_layers=_LAYERS.value, d_model=_WIDTH.value, num_heads=heads)
  # 8/3 D, rounded to the lanes of an accelerator: three matrices as large as the usual two.
  config.model.update(num_kv_heads=heads, mlp_dim=-(-_WIDTH.value * 8 // 3 // HEAD) * HEAD)
  config.model.remat = _REMAT.value
  config.model.residual.name = "standard" if name == timed_step.PLAIN else name
  config.model.residual.block_attn_res.layers_per_block = _PER_BLOCK.value
  config.data.seq_len = _LENGTH.value
  return config


if __name__ == "__main__":
  command.run(main)
