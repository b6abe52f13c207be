"""Meshes; slices of TPUs lie along `data`."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AxisType

from resjax.base.sharding import MESH_AXES, MeshConfig, make_mesh, mesh
from tests.helpers.libtpu import needs_libtpu


@pytest.mark.parametrize(
  "config, sizes",
  [
    (MeshConfig(), (8, 1, 1, 1, 1)),
    (MeshConfig(data=2, fsdp=2, tensor=2), (2, 2, 1, 2, 1)),
    (MeshConfig(data=2, fsdp=-1), (2, 4, 1, 1, 1)),
    (MeshConfig(data=1, tensor=2, sequence=-1), (1, 1, 1, 2, 4)),
  ],
)
def test_mesh(config, sizes):
  mesh = make_mesh(config)
  assert mesh.axis_names == MESH_AXES and mesh.devices.shape == sizes
  assert set(mesh.axis_types) == {AxisType.Auto}


@pytest.mark.parametrize(
  "config",
  [
    MeshConfig(data=3),
    MeshConfig(data=4),
    MeshConfig(data=-1, fsdp=-1),
    MeshConfig(data=-1, fsdp=3),
    MeshConfig(data=-1, fsdp=16),
    MeshConfig(data=-1, fsdp=0),
    MeshConfig(data=-2, fsdp=-4),
  ],
)
def test_meshes_that_do_not_fit_are_refused(config):
  with pytest.raises(ValueError, match=rf"'data': {config.data}.* does not fit 8 devices"):
    make_mesh(config)


def test_mesh_of_some_devices():
  devices = jax.devices()[2:4]
  assert list(make_mesh(MeshConfig(), devices).devices.flat) == devices
  with pytest.raises(ValueError, match="does not fit 2 devices"):
    make_mesh(MeshConfig(data=8), devices)


@pytest.mark.parametrize("sizes", [{"data": 1, "fsdp": 8}, {"data": 1, "fsdp": 4, "tensor": 2}])
def test_other_axes_than_data_do_not_join_slices(sizes):
  devices = [SimpleNamespace(platform="tpu", slice_index=i // 4) for i in range(8)]
  with pytest.raises(ValueError, match=r"config.mesh.data=1 .*2 slices of 4 devices") as raised:
    make_mesh(MeshConfig(**sizes), devices)
  line = str(raised.value)
  assert "fsdp × expert × tensor × sequence = 8" in line and "\n" not in line


def test_data_alone_is_split_over_slices(monkeypatch):
  asked = []

  def hybrid(within, across, devices, **_):
    asked.append((within, across))
    return np.array(devices).reshape(np.multiply(within, across))

  monkeypatch.setattr(mesh, "num_slices", lambda devices: 2)
  monkeypatch.setattr(mesh.mesh_utils, "create_hybrid_device_mesh", hybrid)
  made = make_mesh(MeshConfig(data=4, fsdp=2))
  assert asked == [((2, 2, 1, 1, 1), (2, 1, 1, 1, 1))]
  assert made.shape == {"data": 4, "fsdp": 2, "expert": 1, "tensor": 1, "sequence": 1}


@needs_libtpu
@pytest.mark.parametrize("sizes", [{"fsdp": 4}, {"data": 4, "fsdp": 2}, {"data": 2, "tensor": 4}])
def test_data_is_outermost_over_slices(no_tpu, sizes):
  devices = topologies.get_topology_desc("v5e:2x2", "tpu", num_slices=2).devices
  mesh = make_mesh(MeshConfig(**sizes), devices)
  assert set(mesh.axis_types) == {AxisType.Auto}
  slices = [{device.slice_index for device in row.flat} for row in mesh.devices]
  half = len(slices) // 2
  assert slices == [{0}] * half + [{1}] * half
