"""Writes a checkpoint of a run as a folder that transformers and vLLM load.

  resjax export --checkpoint=runs/tiny --out=exported/tiny

A model that no family of transformers computes gets code of its own beside its weights, which
transformers runs with trust_remote_code=True; --with_code gives it to any model.

The command runs in one process, whose host or devices must hold the whole model.
"""

import functools
import math

from absl import flags

from resjax.base import __version__, processes
from resjax.cli import command
from resjax.interop import huggingface
from resjax.interop.huggingface import DTYPES, SERVERS
from resjax.train import experiment
from resjax.train.runs import Run, restore

_CHECKPOINT = flags.DEFINE_string(
  "checkpoint", None, "Folder of a run, whose newest checkpoint is taken, or a checkpoint."
)
_OUT = flags.DEFINE_string("out", None, "Folder to write; it must not exist yet.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", DTYPES, "Type of the tensors.")
_SHARD_GB = flags.DEFINE_float("shard_gb", 5.0, "Largest file in 10^9 bytes.", lower_bound=1e-6)
_WITH_CODE = flags.DEFINE_bool(
  "with_code", None, "Whether the folder holds its model's code; default: where it has to."
)
_FOR = flags.DEFINE_enum(
  "for", "", SERVERS, "A server that has to be able to serve the folder, or nothing is written."
)


def main() -> None:
  """Writes the folder, and prints the architecture that it has."""
  if _CHECKPOINT.value is None or _OUT.value is None:
    raise ValueError("give both, for example --checkpoint=runs/tiny --out=exported/tiny")
  if not math.isfinite(_SHARD_GB.value):
    raise ValueError(f"--shard_gb={_SHARD_GB.value} must be a finite number, for example 5")
  processes.refuse_several("resjax export")
  restore.read_newest(_CHECKPOINT.value, "--checkpoint", _export)


def _export(saved: restore.Saved) -> None:
  assert _OUT.value is not None
  run = experiment.load(str(saved.workdir))
  # before the parameters are read
  form = huggingface.find_form(run.decoder, _WITH_CODE.value, _FOR.value)
  huggingface.check_target(_OUT.value, "--out")
  model = restore.restore_model(run, saved)
  huggingface.export(
    model.decoder,
    _OUT.value,
    tokenizer=model.tokenizer,
    dtype=_DTYPE.value,
    shard_bytes=int(_SHARD_GB.value * 1e9),
    with_code=_WITH_CODE.value,
    server=_FOR.value,
    facts=_facts(run, saved),
  )
  print(f"{_OUT.value}: {form.architecture}, {_DTYPE.value}")


def _facts(run: Run, saved: restore.Saved) -> dict[str, object]:
  """Returns the facts about the training for the model card."""
  row = run.train.batch_size * run.data.seq_len
  return {
    "checkpoint": saved.title,
    "training": f"{saved.step} of {run.train.steps} steps of {row:,} tokens",
    "rows": f"{run.data.seq_len:,} tokens",
    "data": ", ".join(name for name, _ in run.data.corpora),
    "optimizer": f"{run.optim.name}, learning rate {run.optim.learning_rate:g}",
    "seed": run.seed,
    "written by": f"resjax {__version__}",
  }


run = functools.partial(command.run, main)
