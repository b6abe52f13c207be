"""One of several processes that read training batches and put them onto meshes, for tests.

  python -m tests.helpers.batch_process ROOT STEPS

prints for each mesh a line: its name, the rows that this process read, and the digests of the
whole batches, read back from the mesh.
"""

import hashlib
import sys

import jax
import numpy as np
from jax.sharding import Mesh

from configs import tiny
from resjax.base import processes
from resjax.base.sharding import MESH_AXES, Layout
from resjax.data import dataset, pipeline
from resjax.train import experiment
from tests.helpers import layouts

BATCH_SIZE = 8
MESHES = {
  "data": (4, 1, 1, 1, 1),
  "fsdp": (2, 2, 1, 1, 1),
  "expert": (2, 1, 2, 1, 1),
  "tensor": (1, 1, 1, 4, 1),  # every process reads all rows
  "rows in two processes": (2, 1, 1, 2, 1),
  "sequence": (1, 1, 1, 1, 4),  # every process reads all rows, and keeps a part of each
  "both": (2, 1, 1, 1, 2),
}


def main() -> None:
  processes.initialize(bringup_seconds=60, heartbeat_seconds=30)
  config = tiny.get_config()
  config.data.root, config.data.seq_len = f"{sys.argv[1]}/data", 32
  config.data.corpora.stdlib.source = f"{sys.argv[1]}/text"
  config.data.tokenizer.name, config.data.validation_fraction = "byte", 0.2
  run = experiment.build(config)
  built = dataset.build(run.data)
  devices = np.array(jax.devices())
  for name, shape in MESHES.items():
    _show(name, Mesh(devices.reshape(shape), MESH_AXES), run, built)
  # Devices of a process need not be neighbours in a mesh.
  _show("scattered", Mesh(devices[[0, 2, 1, 3]].reshape(4, 1, 1, 1, 1), MESH_AXES), run, built)
  processes.shutdown()


def _show(name: str, mesh: Mesh, run, built) -> None:
  layout = Layout(mesh, layouts.sharding("long_context").rules)
  rows = layout.rows(BATCH_SIZE)
  batches = pipeline.train_batches(run.data, built, batch_size=BATCH_SIZE, seed=0, rows=rows)
  copy = jax.jit(lambda tree: tree, out_shardings=layout.sharding())
  digest = hashlib.sha256()
  for _ in range(int(sys.argv[2])):
    own = next(batches)
    whole = copy(layout.put(own, BATCH_SIZE))
    for key in sorted(whole):
      array = np.asarray(whole[key])
      np.testing.assert_array_equal(array[rows], own[key])
      digest.update(array.tobytes())
  print("mesh", name, ",".join(map(str, rows)), digest.hexdigest(), sep="|", flush=True)


if __name__ == "__main__":
  main()
