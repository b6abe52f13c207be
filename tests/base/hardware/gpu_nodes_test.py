"""Names of NVIDIA GPUs that programs are compiled for in their absence."""

import pytest

from resjax.base.hardware import gpu_nodes
from resjax.base.hardware.chips import GPU_DRIVER_BYTES, GPU_TARGETS, find_gpu, find_target


@pytest.mark.parametrize(
  ("name", "devices", "nodes"),
  [("h100-1", 1, 1), ("h100-8", 8, 1), ("b200-8", 8, 1), ("b200-2", 2, 1), ("h100-32", 32, 4)],
)
def test_names(name, devices, nodes):
  found = gpu_nodes.resolve(name)
  assert (found.name, found.devices, found.nodes) == (name, devices, nodes)
  assert found.nodes * found.node_devices == devices
  assert gpu_nodes.is_gpu(name)


@pytest.mark.parametrize("name", ["h100", "h100-0", "h100-3", "h100-12", "h100-8x", "b200:2x2"])
def test_what_there_is_not(name):
  with pytest.raises(ValueError, match=rf"--topology={name} is not .*h100-8, KIND of h100, b200"):
    gpu_nodes.resolve(name)


def test_tpus_are_no_gpus():
  assert not any(map(gpu_nodes.is_gpu, ("v5e-256", "v6e:16x16", "tpu7x-8", "v100-8", "")))


@pytest.mark.parametrize("gpu", GPU_TARGETS.values(), ids=GPU_TARGETS)
def test_facts_agree(gpu):
  assert find_target(gpu.device_kind) is gpu and find_target("NVIDIA A100-SXM4-80GB") is None
  assert 0.95 * gpu.device_memory < gpu.available_memory <= gpu.device_memory
  assert gpu.program_bytes + GPU_DRIVER_BYTES in (228 * 1024, 100 * 1024)
  assert find_gpu(gpu.device_kind) or gpu.capability == (12, 0)  # its peak is not listed
