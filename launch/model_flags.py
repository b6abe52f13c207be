"""Flags of the commands that measure trained models: which models, which text, which mesh."""

from absl import flags

from configs import base
from resjax import measured_models
from resjax.data.config import FORMATS
from resjax.data.eval_text import MeasuredText
from resjax.measured_models import Subject
from resjax.sharding import Layout, MeshConfig, Rules, ShardingConfig, make_layout

_RULES = "fsdp_tp"  # the sharding rules of configs/base.py that have this name

CHECKPOINTS = flags.DEFINE_multi_string(
  "checkpoint", [], "Folder of a run, whose newest checkpoint is taken, or a checkpoint."
)
FOLDERS = flags.DEFINE_multi_string(
  "hf", [], "Folder of a Hugging Face model: config.json, safetensors, tokenizer.json."
)
_DATA = flags.DEFINE_string(
  "data",
  None,
  "Folder of a run, for the validation split of its corpora; or python-stdlib, a file, folder or "
  "glob of text, JSONL or Parquet, or tfds:NAME[/CONFIG]. Default: the first --checkpoint.",
)
_FORMAT = flags.DEFINE_enum(
  "data_format", "auto", FORMATS, "Format of files; auto: by their endings."
)
_FIELD = flags.DEFINE_string(
  "data_field", "text", "Field of JSONL, column of Parquet or feature of TFDS that holds the text."
)
_TOKENS = flags.DEFINE_integer("tokens", 16384, "Most tokens of the text.", lower_bound=2)
_SEQ_LEN = flags.DEFINE_integer(
  "seq_len", 0, "Tokens in a row; 0: as many as in training, for --hf at most 1024.", lower_bound=0
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Rows measured at a time.", lower_bound=1)
_MESH = {
  axis: flags.DEFINE_integer(
    axis, 1, f"Devices along the mesh axis {axis}; the axis data has the rest."
  )
  for axis in ("fsdp", "tensor")
}


def layout() -> Layout:
  """Returns the layout over all devices that the flags describe."""
  rules = ShardingConfig(_RULES, Rules(**base.sharding()[_RULES]))
  mesh = MeshConfig(**{axis: flag.value for axis, flag in _MESH.items()})
  return make_layout(mesh, rules)


def load() -> list[Subject]:
  """Returns the models of --checkpoint, and behind them those of --hf.

  Raises:
    ValueError: there are none, or one cannot be loaded.
  """
  if not CHECKPOINTS.value and not FOLDERS.value:
    raise ValueError(
      "no model; give the folder of a run, for example --checkpoint=runs/tiny, or --hf with the "
      "folder of a Hugging Face model"
    )
  place = layout()
  return [measured_models.from_workdir(path, place) for path in CHECKPOINTS.value] + [
    measured_models.from_huggingface(path, place) for path in FOLDERS.value
  ]


def read_text(subject: Subject) -> MeasuredText:
  """Returns the text of --data, encoded with the tokenizer of a model.

  Raises:
    ValueError: there is no text, or less than two tokens of it.
  """
  data = _DATA.value or next(iter(CHECKPOINTS.value), None)
  if data is None:
    raise ValueError("no text; give --data a file, a folder, the folder of a run, or python-stdlib")
  return measured_models.read_text(
    subject,
    data,
    max_tokens=_TOKENS.value,
    batch_size=_BATCH_SIZE.value,
    seq_len=_SEQ_LEN.value,
    form=_FORMAT.value,
    field=_FIELD.value,
  )
