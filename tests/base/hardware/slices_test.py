"""TPU slices: their names, and what follows from them."""

import math
import subprocess
import sys

import pytest

from resjax.base.hardware import slices
from resjax.base.hardware.chips import TPU_CHIPS
from resjax.base.hardware.slices import GENERATIONS, resolve


@pytest.mark.parametrize(
  ("names", "chips", "devices", "vms", "hosts", "gke"),
  [
    (("v5litepod-16", "v5e:4x4", "v5e-16"), 16, 16, 4, 4, "tpu-v5-lite-podslice"),
    (("v5litepod-256", "v5e:16x16", "v5e-256"), 256, 256, 64, 64, "tpu-v5-lite-podslice"),
    (("v5litepod-8", "v5e:2x4"), 8, 8, 1, 2, "tpu-v5-lite-podslice"),
    (("v5litepod-1", "v5e:1x1"), 1, 1, 1, 1, "tpu-v5-lite-podslice"),
    (("v6e-256", "v6e:16x16"), 256, 256, 64, 64, "tpu-v6e-slice"),
    (("v5p-8", "v5p:2x2x1"), 4, 4, 1, 1, "tpu-v5p-slice"),
    (("v5p-512", "v5p:4x8x8"), 256, 256, 64, 64, "tpu-v5p-slice"),
    (("v5p-1024", "v5p:8x8x8"), 512, 512, 128, 128, "tpu-v5p-slice"),
    (("v5p-1536", "v5p:8x8x12"), 768, 768, 192, 192, "tpu-v5p-slice"),
    (("v5p-12288", "v5p:16x16x24"), 6144, 6144, 1536, 1536, "tpu-v5p-slice"),
    (("v4-32", "v4:2x2x4"), 16, 16, 4, 4, "tpu-v4-podslice"),
    (("v4-8192", "v4:16x16x16"), 4096, 4096, 1024, 1024, "tpu-v4-podslice"),
    (("tpu7x-2", "tpu7x:1x1x1"), 1, 2, 1, 1, "tpu7x"),
    (("tpu7x-128", "tpu7x:4x4x4"), 64, 128, 16, 16, "tpu7x"),
    (("tpu7x-18432", "tpu7x:16x24x24"), 9216, 18432, 2304, 2304, "tpu7x"),
  ],
)
def test_slices(names, chips, devices, vms, hosts, gke):
  (one,) = {resolve(name) for name in names}
  assert (one.chips, one.devices, one.vms, one.hosts) == (chips, devices, vms, hosts)
  assert one.generation.gke_accelerator == gke
  assert one.accelerator_type == names[0] and one.name == names[1]
  assert one.is_default_shape


def test_a_shape_that_its_accelerator_type_does_not_have_by_default():
  long = resolve("v5p:4x8x16")
  assert (long.chips, long.accelerator_type, long.is_default_shape) == (512, "v5p-1024", False)


@pytest.mark.parametrize("name", ["", "v5", "v9:2x2", "v5e:4", "v5e:4by4", "h100", "h100-8"])
def test_names_of_no_generation(name):
  with pytest.raises(ValueError, match=rf"--topology={name} is not .*v5litepod-16.*v5e:4x4.*tpu7x"):
    resolve(name)


@pytest.mark.parametrize("name", ["v5e", "v5e:3x3", "v5e-250", "v5litepod-2", "v5e:4x2"])
def test_flat_slices_that_there_are_not(name):
  with pytest.raises(ValueError, match=rf"--topology={name} is not .*v5e has v5litepod-1 \(1x1\),"):
    resolve(name)


@pytest.mark.parametrize("name", ["v5p-7", "v5p:4x4", "v5p:4x4x2", "v5p:4x4x6", "v5p:16x24x24"])
def test_cubes_that_there_are_not(name):
  words = rf"--topology={name} is not .*v5p has v5p-8 \(2x2x1\).*at most 6144 chips.*TensorCores"
  with pytest.raises(ValueError, match=words):
    resolve(name)


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=GENERATIONS)
def test_the_table(generation):
  assert len(set(generation.shapes)) == len(generation.shapes)
  sizes = [slices.count_chips(shape) for shape in generation.shapes]
  assert sizes == sorted(sizes) and sizes[-1] == max(generation.largest, sizes[-1])
  for accelerator_type, shape in generation.shape_of_type.items():
    same = [s for s in generation.shapes if slices.count_chips(s) == slices.count_chips(shape)]
    sides = [sum(map(int, s.split("x"))) for s in same]
    assert sides[same.index(shape)] == min(sides)  # the most compact one
    number = int(accelerator_type.split("-")[1])
    cores = 2 if generation.counts_cores else 1
    assert number == cores * math.prod(map(int, shape.split("x")))
  assert resolve(generation.host).hosts == 1 and resolve(generation.host).chips == 4


def test_chips_have_what_slices_need():
  assert list(TPU_CHIPS) == list(GENERATIONS)
  for chip in TPU_CHIPS.values():
    assert chip.device_cores * chip.devices == chip.cores
    assert chip.available_memory < chip.device_memory


def test_hardware_imports_nothing_heavy():
  program = (
    "import resjax.base.hardware.slices, sys; print(*{name.split('.')[0] for name in sys.modules})"
  )
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
  assert not {"jax", "numpy", "flax", "absl"} & set(done.stdout.split())
