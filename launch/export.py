"""Writes a checkpoint of a run as a folder that transformers and vLLM load.

  python -m launch.export --checkpoint=runs/tiny --out=exported/tiny

A model that no family of transformers computes gets code of its own beside its weights, which
transformers runs with trust_remote_code=True; --with_code gives it to any model.

The command runs in one process, whose host or devices must hold the whole model.
"""

from absl import flags

from launch import cli
from resjax import experiment, processes
from resjax.interop import huggingface
from resjax.interop.huggingface.exporting import DTYPES
from resjax.runs import restore

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "Folder of a run, or a checkpoint in it.")
_OUT = flags.DEFINE_string("out", None, "Folder to write; it must not exist yet.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", DTYPES, "Type of the tensors.")
_SHARD_GB = flags.DEFINE_float("shard_gb", 5.0, "Largest file in 10^9 bytes.", lower_bound=1e-6)
_WITH_CODE = flags.DEFINE_bool(
  "with_code", None, "Whether the folder holds its model's code; default: where it has to."
)


def main() -> None:
  """Writes the folder, and prints the architecture that it has."""
  if _CHECKPOINT.value is None or _OUT.value is None:
    raise ValueError("give both, for example --checkpoint=runs/tiny --out=exported/tiny")
  processes.refuse_several("launch.export")
  saved = restore.find(_CHECKPOINT.value, "--checkpoint")
  run = experiment.load(str(saved.workdir))
  form = huggingface.find_form(run.decoder, _WITH_CODE.value)  # before the parameters are read
  huggingface.check_target(_OUT.value, "--out")
  model, params, tokenizer = restore.restore_model(run, saved)
  huggingface.export(
    model.bind(params),
    _OUT.value,
    tokenizer=tokenizer,
    dtype=_DTYPE.value,
    shard_bytes=int(_SHARD_GB.value * 1e9),
    with_code=_WITH_CODE.value,
  )
  print(f"{_OUT.value}: {form.architecture}, {_DTYPE.value}")


if __name__ == "__main__":
  cli.run(main)
