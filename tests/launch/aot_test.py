"""`launch.aot`: names of slices, mistakes, and TPUs that are not there (needs the extra `tpu`)."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from resjax.aot import absent_devices
from resjax.aot.memory import GIB, refusal
from resjax.hardware.slices import GENERATIONS
from resjax.sharding import MeshConfig, make_mesh
from tests.helpers.libtpu import needs_libtpu

REPOSITORY = Path(__file__).parents[2]


def aot(*flags, config="configs/tiny.py"):
  environment = {**os.environ, "XLA_FLAGS": "", "COLUMNS": "100"}
  command = [sys.executable, "-m", "launch.aot", f"--config={config}", *flags]
  return subprocess.run(
    command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
  )


def test_without_libtpu_the_extra_is_named(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ValueError, match=r"needs libtpu.*\[tpu\]"):
    absent_devices.describe("v5e-256")


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ([], "error: no topology; give one, for example --topology=v5e-256"),
    (["--topology=v5e:4by4"], "error: --topology=v5e:4by4 is not a TPU slice; give an"),
    (["--topology=v5e:3x3"], "error: --topology=v5e:3x3 is not a TPU slice; v5e has v5litepod-1"),
  ],
)
def test_mistakes_are_one_line(flags, message):
  done = aot(*flags)
  assert done.returncode == 1 and done.stdout == ""
  assert done.stderr.startswith(message) and done.stderr.count("\n") == 1


@needs_libtpu
@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--topology=v5e-16", "--config.mesh.fsdp=5"], "does not fit 16 devices"),
    (
      ["--topology=v5e-4", "--num_slices=2", "--config.mesh.data=1", "--config.mesh.fsdp=8"],
      "config.mesh.data=1 is not divisible by the 2 slices",
    ),
  ],
)
def test_slices_that_cannot_be_are_one_line(flags, message):
  done = aot(*flags)
  assert done.returncode == 1 and message in done.stderr
  assert done.stderr.count("\n") == 1


@needs_libtpu
@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=GENERATIONS)
def test_available_memory_is_what_the_compiler_says(no_tpu, generation):
  target = absent_devices.describe(generation.host)
  mesh = Mesh(np.array(target.devices), ("data",))
  large = jax.ShapeDtypeStruct(
    (len(target.devices) * 2**16, 2**20),
    jnp.float32,
    sharding=NamedSharding(mesh, PartitionSpec("data")),
  )
  with pytest.raises(jax.errors.JaxRuntimeError) as error:
    jax.jit(jnp.sin).lower(large).compile()
  needed, available = refusal(str(error.value))
  assert available / GIB == generation.chip.available_memory < generation.chip.device_memory
  assert needed == 2 * 2**38


@needs_libtpu
@pytest.mark.parametrize("fsdp", [16, 64, 256])  # 64 are no whole axes of 16 × 16 chips
def test_data_is_the_outer_axis_over_slices(no_tpu, fsdp):
  devices = absent_devices.describe("v5e-256", num_slices=2).devices
  mesh = make_mesh(MeshConfig(data=-1, fsdp=fsdp), devices)
  slices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
  assert slices.shape == (512 // fsdp, fsdp, 1, 1)
  assert {*slices[: 256 // fsdp].flat} == {0} and {*slices[256 // fsdp :].flat} == {1}


@needs_libtpu
def test_a_small_step_fits():
  done = aot("--topology=v5e-4", "--json", "--config.mesh.data=1", "--config.mesh.fsdp=4")
  assert done.returncode == 0, done.stderr
  report = json.loads(done.stdout)
  assert (report["fits"], report["topology"], report["devices"]) == (True, "v5e:2x2", 4)
  memory = report["memory"]
  assert memory["arguments"]["optimizer"] > 1.9 * memory["arguments"]["parameters"]
  assert 0 < memory["temporaries"] < report["hbm_available"]
  assert memory["donated"] > 0.9 * memory["arguments"]["parameters"] * 3
  networks = {row["network"] for row in report["collectives"]}
  assert networks == {"ICI"} and report["unknown_loops"] == []
  assert {"fsdp"} == {axis for row in report["collectives"] for axis in row["axes"]}
  assert report["flops"]["compiler"] < report["flops"]["matrices"]
  assert "HBM of one device" in done.stderr


@needs_libtpu
def test_a_large_step_does_not_fit(tmp_path):
  out = tmp_path / "report" / "aot.json"
  large = ["--config.train.batch_size=65536", "--config.mesh.data=2", "--config.mesh.fsdp=2"]
  done = aot("--topology=v5e-4", f"--out={out}", *large)
  assert done.returncode == 1, done.stderr
  report = json.loads(out.read_text())
  assert report["shortfall"] == report["required"] - report["available"] > 0
  assert report["available"] == 15.75 * GIB
  (words,) = [line for line in done.stdout.splitlines() if line.startswith("does not fit")]
  assert f"{report['shortfall'] / GIB:.2f} GiB too much" in words
  # Parameters of 10 MB are not the reason, so no larger fsdp is suggested.
  assert [change.split("=")[0] for change in report["changes"][:-1]] == [
    "--config.train.microbatches",
    "--config.model.remat",
  ]
  assert all(change in done.stdout for change in report["changes"])


@needs_libtpu
@pytest.mark.slow
def test_search_ends_with_flags_that_fit():
  large = ["--config.train.batch_size=8192", "--config.mesh.data=1", "--config.mesh.fsdp=4"]
  done = aot("--topology=v5e-4", "--search", *large)
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  tries = [line for line in lines if line.startswith("remat ")]
  assert any(line.endswith("does not fit") for line in tries)
  assert any(line.endswith(", fits") for line in tries)
  flags = lines[-1].removeprefix("use ").split(" ")
  assert len(flags) == 2 and all(flag.startswith("--config.") for flag in flags)


SLICES = [("v5e-256", 1), ("v5p-512", 1), ("v6e-256", 1), ("v5e-256", 2)]


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("size", ["1p3b", "7b"])
@pytest.mark.parametrize(("name", "num_slices"), SLICES)
def test_the_large_configs_fit_and_compile_in_time(size, name, num_slices):
  flags = [f"--topology={name}", f"--num_slices={num_slices}", "--json"]
  done = aot(*flags, config=f"configs/llama_{size}.py")
  assert done.returncode == 0, done.stderr
  report = json.loads(done.stdout)
  assert report["cpu_seconds"] < 2 * 90  # 90 s of two cores
  for row in report["collectives"]:
    assert row["network"] == "ICI" or row["axes"] == ["data"], row
  assert any(row["network"] == "DCN" for row in report["collectives"]) == (num_slices > 1)
