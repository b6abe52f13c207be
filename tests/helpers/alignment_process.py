"""One of several processes that measure the alignment of a decoder together, for tests.

  python -m tests.helpers.alignment_process

prints the figures as JSON. Rows and tokens are split over the processes.
"""

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from resjax.base import processes
from resjax.base.sharding import MESH_AXES, Layout
from resjax.models.model_def import ModelDef
from resjax.study.analysis.alignment import Alignment
from resjax.study.analysis.measurement import measure
from resjax.study.analysis.probing import ProbeConfig
from tests.helpers import decoders, layouts

ROWS, T, V = 8, 16, 32
CONFIG = ProbeConfig(chunk_size=4, kl_every=2)


def batches() -> list[dict[str, np.ndarray]]:
  """Two batches; the second one ends with a row of padding."""
  rng = np.random.default_rng(0)
  found = []
  for filled in (ROWS, ROWS - 1):
    tokens = np.minimum(rng.geometric(0.15, (ROWS, T)), V) - 1
    segment_ids = np.where(np.arange(ROWS)[:, None] < filled, 1, 0) * np.ones_like(tokens)
    positions = np.tile(np.arange(T), (ROWS, 1))
    rows = {"inputs": tokens, "segment_ids": segment_ids, "positions": positions}
    found.append({key: np.asarray(value, np.int32) for key, value in rows.items()})
  return found


def measured(layout: Layout, rows: np.ndarray) -> Alignment:
  """Measures the rows of all processes, of which this one has some."""
  config = decoders.config("llama", "block_attn_res", {"layers_per_block": 2}, vocab_size=V)
  params, made = nnx.to_pure_dict(nnx.state(decoders.decoder(config))), ModelDef(config, layout)
  if layout.has_mesh:
    params = jax.tree.map(
      lambda a, to: jax.make_array_from_callback(a.shape, to.sharding, np.asarray(a).__getitem__),
      params,
      made.abstract,
    )
  own = [{key: value[rows] for key, value in batch.items()} for batch in batches()]
  names = {"model": "a", "corpus": "b", "config": CONFIG, "num_bootstrap": 50}
  return measure(made.bind(params), own, batch_size=ROWS, **names)


def main() -> None:
  """The processes split the rows; from four on, some hold parts of the same ones."""
  processes.initialize(bringup_seconds=60, heartbeat_seconds=30)
  devices = np.array(jax.devices())
  shape = (2, 1, 1, 1, len(devices) // 2)
  layout = Layout(Mesh(devices.reshape(shape), MESH_AXES), layouts.sharding("long_context").rules)
  found = measured(layout, layout.rows(ROWS)).to_json()
  processes.shutdown()
  # The others no longer wait for this process, which may wait until its output is read.
  print("json", found, sep="|", flush=True)


if __name__ == "__main__":
  main()
