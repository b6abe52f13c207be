"""Every name of every TPU slice, through the launchers and through launch.aot: all agree."""

import math

import pytest
import yaml

from launch.gke import commands as gke
from launch.gke.jobset import GkeJob, TpuNodes
from launch.tpu import commands as tpu
from resjax.aot import absent_devices
from resjax.base.hardware.slices import GENERATIONS, resolve
from tests.helpers.libtpu import needs_libtpu

RESOURCE = tpu.Resource("run1", "us-west4-a", "", False)
CLUSTER = ["--cluster=c"]


def names(generation):
  """Yields lists of names of one slice each: its shape, and its accelerator types if it has any."""
  types = {shape: name for name, shape in generation.shape_of_type.items()}
  for shape in generation.shapes:
    found = [f"{generation.name}:{shape}", f"{generation.accelerator}:{shape}"]
    if shape in types:
      found += [types[shape], types[shape].replace(generation.accelerator, generation.name)]
    yield found


def job(one):
  return GkeJob(
    "run1", "default", TpuNodes(one, 2), "image", ("true",), {}, False, "", "", "", {}, 1, 9
  )


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=GENERATIONS)
def test_every_name_through_the_launchers(generation):
  for aliases in names(generation):
    (one,) = {resolve(name) for name in aliases}
    chips = math.prod(map(int, one.shape.split("x")))
    _, apply = gke.run(job(one))
    (replicated,) = yaml.load(apply.stdin, yaml.CSafeLoader)["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == one.shape
    (limit,) = pod["containers"][0]["resources"]["limits"].values()
    assert spec["completions"] == one.hosts
    assert spec["completions"] * limit == one.chips == chips
    (create,) = gke.xpk_run(job(one), CLUSTER)
    (xpk_type,) = [word for word in create.argv if word.startswith("--tpu-type=")]
    _, request, _ = tpu.create(
      RESOURCE, tpu.Request(one, 1, "spot", "", "", "", "r", "", "default", ""), 0
    )
    asked = dict(word.split("=", 1) for word in request.argv if "=" in word)
    if len(aliases) > 2:
      assert asked["--accelerator-type"] == xpk_type.removeprefix("--tpu-type=") == aliases[2]
    else:
      assert (asked["--type"], asked["--topology"]) == (generation.accelerator, one.shape)
      assert xpk_type == f"--tpu-type={generation.accelerator}-{one.shape}"


@needs_libtpu
@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=GENERATIONS)
def test_libtpu_knows_every_slice_by_its_number(no_tpu, generation):
  for name in generation.shape_of_type:
    target = absent_devices.describe(name)
    assert len(target.devices) == target.part.devices, name
    assert len({device.process_index for device in target.devices}) == target.part.hosts, name
    assert target.devices[0].device_kind in generation.chip.device_kinds
    coordinates = {tuple(device.coords) for device in target.devices}
    assert len(coordinates) == target.part.chips
    sides = [1 + max(axis) for axis in zip(*coordinates, strict=True)]
    assert sides[: target.part.shape.count("x") + 1] == [
      int(n) for n in target.part.shape.split("x")
    ]
