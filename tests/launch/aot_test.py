"""`launch.aot`: names of slices, mistakes, and TPUs that are not there (needs the extra `tpu`)."""

import importlib.util
import json
import os
import shutil
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
from resjax.base.hardware.slices import GENERATIONS
from resjax.base.sharding import MeshConfig, make_mesh
from tests.helpers import runs
from tests.helpers.cuda_aot import needs_cuda_aot
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


def test_without_the_plugin_the_extra_is_named(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  monkeypatch.setattr(shutil, "which", lambda name: None)
  words = r"h100-8 needs JAX's plugin for CUDA and ptxas, GPU or not.*\[cuda_aot\]"
  with pytest.raises(ValueError, match=words):
    absent_devices.describe("h100-8")


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ([], "error: no topology; give one, for example --topology=v5e-256"),
    (["--topology=v5e:4by4"], "error: --topology=v5e:4by4 is not a TPU slice; give an"),
    (["--topology=v5e:3x3"], "error: --topology=v5e:3x3 is not a TPU slice; v5e has v5litepod-1"),
    (["--topology=h100-7"], "error: --topology=h100-7 is not a number of GPUs; give KIND-N such"),
    (["--topology=h100-8", "--num_slices=2"], "error: --num_slices joins TPU slices; h100-8 has"),
  ],
)
@pytest.mark.slow
def test_mistakes_are_one_line(flags, message):
  done = aot(*flags)
  assert done.returncode == 1 and done.stdout == ""
  assert done.stderr.startswith(message) and done.stderr.count("\n") == 1


# The command for a slice whose chips are the devices of its process.
HERE = """
import jax
from launch import aot
from resjax.aot import absent_devices
from resjax.base.hardware import slices
from resjax.cli import command
aot._READS_PROGRAMS = {checkout}
jax.config.update("jax_num_cpu_devices", 8)
chips = absent_devices.AbsentSlices(slices.resolve("v5e-8"), 1, tuple(jax.devices()))
absent_devices.describe = lambda name, num_slices: chips
command.run(aot.main)
"""
SMALL = """
  model.num_layers=2 model.d_model=32 model.num_heads=4 model.num_kv_heads=4 model.mlp_dim=64
  data.seq_len=32 data.tokenizer.name=byte mesh.data=2 mesh.fsdp=4
"""


def here(*flags, checkout):
  small = [f"--config.{word}" for word in SMALL.split()]
  words = ["--config=configs/tiny.py", "--topology=v5e-8", *small, *flags]
  command = [sys.executable, "-c", HERE.format(checkout=checkout), *words]
  environment = runs.environment(COLUMNS=100)
  return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_checkout_reads_the_program_and_a_wheel_says_what_it_leaves_out():
  done = [here("--json", "--passes", checkout=True), here("--json", checkout=False)]
  assert [one.returncode for one in done] == [0, 0], done[0].stderr + done[1].stderr
  report, left = [json.loads(one.stdout) for one in done]
  assert report["flops"]["matrices"] > report["flops"]["compiler"]
  assert {row["kind"] for row in report["collectives"]} >= {"all-gather"}
  totals = report["passes"]["total"], report["standard_passes"]["total"]
  assert totals[0]["depth mixing"] > totals[1]["depth mixing"]
  for table in ("exchanges between devices in a step", "memory traffic, passes per sublayer"):
    assert table in done[0].stderr
  in_checkouts = {"collectives", "passes", "floor", "unknown_loops", "standard_passes"}
  assert set(report) - set(left) == in_checkouts and "matrices" not in left["flops"]
  assert left["memory"] == report["memory"] and left["fingerprint"] == report["fingerprint"]
  assert "take a checkout: clone the repository" in done[1].stderr


def test_a_wheel_refuses_to_count_passes_in_one_line():
  done = here("--passes", checkout=False)
  assert done.returncode == 1 and done.stdout == ""
  assert done.stderr.startswith("error: --passes reads the compiled program")
  assert done.stderr.count("\n") == 1


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
  assert slices.shape == (512 // fsdp, fsdp, 1, 1, 1)
  assert {*slices[: 256 // fsdp].flat} == {0} and {*slices[256 // fsdp :].flat} == {1}


@needs_libtpu
def test_a_small_step_fits():
  sharded = "--config.mesh.data=1", "--config.mesh.fsdp=4"
  done = aot("--topology=v5e-4", "--json", "--passes", *sharded)
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
  totals = report["passes"]["total"], report["standard_passes"]["total"]
  assert sum(totals[0].values()) > sum(totals[1].values())
  assert totals[0]["depth mixing"] > totals[1]["depth mixing"] and report["floor"]["reverse"] > 0
  assert all(size > 0 for part, size in totals[0].items() if part != "the rest")
  assert totals[0]["the rest"] < 0.01 * sum(totals[0].values())
  assert "the least for depth mixing by formulas" in done.stderr


@needs_libtpu
def test_one_device_of_a_slice():
  done = aot("--topology=v5p-8", "--devices=1", "--json")
  assert done.returncode == 0, done.stderr
  report = json.loads(done.stdout)
  assert (report["devices"], report["collectives"]) == (1, [])
  assert report["passes"]["total"]["collectives"] == 0


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
  preset = f":{name}" * (num_slices == 1)
  done = aot(*flags, config=f"configs/llama_{size}.py{preset}")
  assert done.returncode == 0, done.stderr
  report = json.loads(done.stdout)
  assert report["cpu_seconds"] < 2 * 90  # 90 s of two cores
  for row in report["collectives"]:
    assert row["network"] == "ICI" or row["axes"] == ["data"], row
  assert any(row["network"] == "DCN" for row in report["collectives"]) == (num_slices > 1)


@needs_cuda_aot
@pytest.mark.parametrize(
  ("name", "memory"), [pytest.param("h100-8", 79.1, marks=pytest.mark.release), ("b200-8", 178.4)]
)
def test_a_step_on_a_node_of_gpus(name, memory):
  small = ["--config.model.num_layers=4", "--config.model.residual.name=standard"]
  mesh = ["--config.mesh.data=2", "--config.mesh.fsdp=4", "--config.model.attention=xla"]
  done = aot(f"--topology={name}", "--json", *small, *mesh)
  assert done.returncode == 0, done.stderr
  report = json.loads(done.stdout)
  assert (report["fits"], report["topology"], report["devices"]) == (True, name, 8)
  assert report["hbm_available"] / GIB == pytest.approx(memory, abs=0.1)
  assert report["memory"]["arguments"]["parameters"] > 0 < report["memory"]["temporaries"]
  assert report["memory"]["padding"] == 0
  # The compiler for GPUs counts neither, the products are counted in the compiled program.
  assert report["flops"]["compiler"] is None and report["bytes_accessed"] is None
  assert report["flops"]["matrices"] > 0.9 * report["flops"]["model"]
  assert {row["network"] for row in report["collectives"]} == {"NVLink"}
  axes = {axis for row in report["collectives"] for axis in row["axes"]}
  assert axes == {"data", "fsdp"} and report["unknown_loops"] == []
  assert "HBM of one device" in done.stderr and "not told" in done.stderr


@needs_cuda_aot
def test_a_step_that_no_gpu_can_hold_is_refused_with_what_to_change(tmp_path):
  out = tmp_path / "aot.json"
  large = ["--config.train.batch_size=65536", "--config.model.residual.name=standard"]
  mesh = ["--config.mesh.data=1", "--config.model.attention=xla", "--config.model.num_layers=2"]
  done = aot("--topology=h100-1", f"--out={out}", *large, *mesh)
  assert done.returncode == 1, done.stderr
  report = json.loads(out.read_text())
  assert report["available"] == 84_942_979_072 < report["required"]
  assert report["changes"][0].startswith("--config.train.microbatches=")
  assert "does not fit" in done.stdout


@needs_cuda_aot
def test_nodes_of_gpus_have_a_network_between_them():
  mesh = make_mesh(MeshConfig(data=2, fsdp=8), absent_devices.describe("h100-16").devices)
  nodes = np.vectorize(lambda device: device.process_index)(mesh.devices)
  assert {*nodes[0].flat} == {0} and {*nodes[1].flat} == {1}


@needs_cuda_aot
@pytest.mark.slow
@pytest.mark.parametrize(
  ("config", "flags"),
  [
    ("gpt2_124m", []),
    ("llama_1p3b", ["--config.train.batch_size=32", "--config.train.microbatches=4"]),
  ],
)
def test_the_gpt2_and_1p3b_steps_fit_one_h100(config, flags):
  flags = [*flags, "--config.mesh.data=1", "--config.mesh.fsdp=1", "--config.model.attention=xla"]
  residual = "--config.model.residual.name=standard"
  done = aot("--topology=h100-1", "--json", residual, *flags, config=f"configs/{config}.py")
  assert done.returncode == 0, done.stderr
  report = json.loads(done.stdout)
  memory = report["memory"]
  held = sum(memory["arguments"].values()) + memory["temporaries"] + memory["output"]
  assert held < 0.75 * 80e9  # what JAX takes of a GPU by default
