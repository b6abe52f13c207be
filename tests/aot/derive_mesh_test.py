"""A mesh that is made for other devices: the entries that follow from their number."""

import pytest

from resjax.aot.derive_mesh import derive, flags
from resjax.base.sharding import MeshConfig


@pytest.mark.parametrize(
  ("given", "devices", "slices", "expected"),
  [
    ((-1, 16), 256, 1, ""),
    ((-1, 16), 8, 1, "--config.mesh.data=1 --config.mesh.fsdp=8"),
    ((-1, 16), 1, 1, "--config.mesh.data=1 --config.mesh.fsdp=1"),
    ((-1, 16), 16, 2, "--config.mesh.data=2 --config.mesh.fsdp=8"),
    ((4, 4), 64, 1, "--config.mesh.data=16"),
    ((1, 8), 8, 2, ""),  # it has all devices; make_mesh says what is wrong with it
    ((-1, 5), 16, 1, ""),  # so here
    ((-1, 8, 2), 8, 1, "--config.mesh.data=1 --config.mesh.fsdp=4"),
    ((-1, 8, 1, 2), 8, 1, "--config.mesh.data=1 --config.mesh.fsdp=4"),
  ],
)
def test_entries(given, devices, slices, expected):
  mesh = MeshConfig(*given)
  assert flags(derive(mesh, devices, slices), mesh) == expected
