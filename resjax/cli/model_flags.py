"""Flags of the commands that load trained models: which models, on which mesh, how many rows."""

from collections.abc import Callable, Sequence
from functools import partial

from absl import flags

from resjax.base.sharding import Layout, MeshConfig, Rules, ShardingConfig, make_layout
from resjax.cli.actions import loading, settings
from resjax.study import TrainedModel

_RULES = "fsdp_tp"  # the sharding rules of configs/base.py that have this name

CHECKPOINTS = flags.DEFINE_multi_string(
  "checkpoint", [], "Folder of a run, whose newest checkpoint is taken, or a checkpoint."
)
FOLDERS = flags.DEFINE_multi_string(
  "hf", [], "Pretrained model: a Hugging Face folder, a GGUF file, or OWNER/NAME[@REVISION] (hub)."
)
IGNORED = flags.DEFINE_list(
  "hf_ignore", [], "Settings of config.json that are not known, and that change nothing."
)
BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Rows measured at a time.", lower_bound=1)
_REST = "the axis data has the rest."
_MESH = {
  "fsdp": flags.DEFINE_integer("fsdp", 1, f"Devices along the mesh axis fsdp; {_REST}"),
  "expert": flags.DEFINE_integer("expert", 1, f"Devices along the mesh axis expert; {_REST}"),
  "tensor": flags.DEFINE_integer("tensor", 1, f"Devices along the mesh axis tensor; {_REST}"),
}


def layout() -> Layout:
  """Returns the layout over all devices that the flags describe."""
  sharding = settings.read_config("base", {}).sharding.to_dict()
  rules = ShardingConfig(_RULES, Rules(**sharding[_RULES]))
  mesh = MeshConfig(**{axis: flag.value for axis, flag in _MESH.items()})
  return make_layout(mesh, rules)


def load() -> list[TrainedModel]:
  """Returns the models of --checkpoint, then the models of --hf.

  Raises:
    ValueError: there are none, or one cannot be loaded.
  """
  return [one() for one in loaders(CHECKPOINTS.value)]


def loaders(checkpoints: Sequence[str]) -> Sequence[Callable[[], TrainedModel]]:
  """Returns functions that load the models of some checkpoints, then the models of --hf.

  Raises:
    ValueError: there are none.
  """
  if not checkpoints and not FOLDERS.value:
    raise ValueError(
      "no model; give the folder of a run, for example --checkpoint=runs/tiny, or --hf with a "
      "Hugging Face folder, a GGUF file, or OWNER/NAME of the hub"
    )
  place = layout()
  return [
    *(partial(loading.from_workdir, path, place) for path in checkpoints),
    *(partial(loading.from_huggingface, path, place, IGNORED.value) for path in FOLDERS.value),
  ]
