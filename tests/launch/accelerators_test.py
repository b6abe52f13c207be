"""TPU slices: names, chips and hosts."""

import pytest

from launch.accelerators import tpu_slice


@pytest.mark.parametrize(
  ("names", "chips", "vms", "nodes", "gke"),
  [
    (("v5litepod-16", "v5e:4x4", "v5e-16"), 16, 4, 4, "tpu-v5-lite-podslice"),
    (("v5litepod-8", "v5e:2x4"), 8, 1, 2, "tpu-v5-lite-podslice"),
    (("v5litepod-1", "v5e:1x1"), 1, 1, 1, "tpu-v5-lite-podslice"),
    (("v6e-256", "v6e:16x16"), 256, 64, 64, "tpu-v6e-slice"),
    (("v5p-8", "v5p:2x2x1"), 4, 1, 1, "tpu-v5p-slice"),
    (("v5p-1024", "v5p:8x8x8"), 512, 128, 128, "tpu-v5p-slice"),
    (("v4-32", "v4:2x2x4"), 16, 4, 4, "tpu-v4-podslice"),
    (("tpu7x-128", "tpu7x:4x4x4"), 64, 16, 16, "tpu7x"),
  ],
)
def test_slices(names, chips, vms, nodes, gke):
  (one,) = {tpu_slice(name) for name in names}
  assert (one.chips, one.vms, one.nodes, one.gke_accelerator) == (chips, vms, nodes, gke)
  assert one.accelerator_type == names[0] and one.shape == names[1].split(":")[1]


@pytest.mark.parametrize(
  "name", ["", "v5", "v5e", "v5e:4", "v5e:3x3", "v5p-7", "h100-8", "v5p:4x4"]
)
def test_others(name):
  with pytest.raises(ValueError, match=f"--topology={name}"):
    tpu_slice(name)
