"""The GPU kernels compiled for GPUs that are not there; needs the extra `cuda_aot`."""

import dataclasses
import json
import subprocess
import sys

import pytest

from launch.bench import compile
from launch.bench.kernels import gpu_compile, gpu_gated_kernels, gpu_stream_kernels
from launch.bench.kernels.gpu_compile import Compiled, KernelCase, compile_kernel
from resjax.aot import absent_devices, program_text
from resjax.base.hardware.chips import GPU_TARGETS
from tests.helpers.cuda_aot import needs_cuda_aot
from tests.helpers.runs import REPOSITORY, environment


def check(gpu, case):
  found = compile_kernel(gpu, case)
  assert isinstance(found, Compiled), found
  assert found.problems() == [], found
  assert 0 < found.registers <= 255
  return found


def whole(*widths):
  return pytest.mark.parametrize("case", list(gpu_compile.cases(widths)), ids=str)


@needs_cuda_aot
@whole(768, 2048, 4096, 7168)
def test_kernels_spill_next_to_nothing_and_fit_an_h100(case):
  check("h100", case)


@needs_cuda_aot
@pytest.mark.slow
@whole(128, 1024, 1536, 8192)
def test_other_widths(case):
  if case.kind == "streams" and case.name != "read" and case.width == 8192:
    assert "does not fit into shared memory" in compile_kernel("h100", case)
  else:
    check("h100", case)


@needs_cuda_aot
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@whole(768, 2048)
def test_other_dtypes(case, dtype):
  if case.kind in ("streams", "gated") and dtype == "float16":
    pytest.skip("streams are bfloat16 or float32")
  check("h100", dataclasses.replace(case, dtype=dtype))


@needs_cuda_aot
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
@pytest.mark.parametrize(
  ("kind", "name"),
  [
    *(("streams", name) for name in gpu_stream_kernels.NAMES),
    *(("gated", name) for name in gpu_gated_kernels.NAMES),
  ],
)
def test_other_numbers_of_streams(kind, name, count):
  check("h100", KernelCase(kind, name, 2048, True, False, False, num_streams=count))


@needs_cuda_aot
@pytest.mark.slow
def test_kernels_fit_other_gpus_or_say_so(tmp_path):
  words = ["--gpu-compile", "--chips=b200,rtxpro6000", "--widths=768,2048,7168"]
  done = subprocess.run(
    [sys.executable, "-m", "launch.bench", "kernels", *words, f"--out={tmp_path}"],
    cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stdout + done.stderr
  for gpu, room in (("b200", None), ("rtxpro6000", "102400 bytes")):
    records = json.loads((tmp_path / f"gpu_compile_{gpu}.json").read_text())["records"]
    refused = [record for record in records if "refused" in record]
    assert len(records) == 69 and len(refused) < 24
    assert all(room and room in record["refused"] for record in refused)
    assert all(record["case"]["width"] == 7168 for record in refused)


@needs_cuda_aot
@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 11, 15])
@pytest.mark.parametrize("name", gpu_gated_kernels.NAMES)
def test_many_streams_of_gated_reads(name, count):
  check("h100", KernelCase("gated", name, 2048, True, False, False, num_streams=count))


@needs_cuda_aot
@pytest.mark.parametrize(
  ("system", "layers", "kernels"),
  [
    (
      "block_attn_res", 6,
      [*(f"depth_attention_{name}" for name in ("block_forward", "block_backward", "forward")),
       *(f"depth_attention_merge_{name}" for name in ("forward", "backward"))],
    ),
    pytest.param(  # twenty Sinkhorn iterations compile for a minute
      "mhc", 2, [f"stream_read_{name}" for name in ("write", "mix", "unmix", "unwrite")],
      marks=pytest.mark.release,
    ),
    pytest.param(
      "hyper_connections", 2, [f"stream_read_{name}" for name in ("write", "unwrite")],
      marks=pytest.mark.release,
    ),
    ("gated_residual", 2, [f"gated_read_{name}" for name in gpu_gated_kernels.NAMES]),
  ],
)  # fmt: skip
def test_a_training_step_compiles_for_an_h100(monkeypatch, system, layers, kernels):
  config = compile.base.get_config()
  config.model.attention = "xla"
  monkeypatch.setattr(compile.base, "get_config", lambda: config)
  devices = absent_devices.describe("h100-1").devices
  small = compile.small_program(system, layers, 1, list(devices))
  text = program_text(small.lower_train_step().compile())
  assert not [kernel for kernel in kernels if kernel not in text]


CASE = KernelCase("merge", "forward", 2048, False, False, True)
FINE = Compiled(CASE, "h100", 255, 0, 110 * 1024, 2, 1.0)


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({}, None),
    ({"spilled": 4}, "spills 4 bytes, 0 are allowed"),
    ({"case": dataclasses.replace(CASE, width=7168), "spilled": 512}, None),
    ({"case": dataclasses.replace(CASE, width=7168), "spilled": 516}, "512 are allowed"),
    ({"programs": 1, "shared": 228 * 1024}, "233472 bytes of shared memory of 232448"),
    ({"shared": 114 * 1024}, "2 programs of 116736 bytes do not share 233472 bytes"),
    ({"programs": 3, "shared": 1024}, "3 programs of 255 registers do not run at a time"),
    ({"programs": 4, "shared": 1024, "registers": 128}, None),
    ({"programs": 4, "shared": 1024, "registers": 129}, "4 programs of 129 registers"),
    ({"gpu": "rtxpro6000", "programs": 1}, "of shared memory of 101376"),
  ],
)
def test_what_no_compiler_checks(changes, words):
  problems = dataclasses.replace(FINE, **changes).problems()
  assert (not problems) if words is None else any(words in problem for problem in problems)


def test_a_chip_that_is_no_gpu_is_refused(tmp_path):
  with pytest.raises(ValueError, match=f"'v5e' is no GPU; allowed: {', '.join(GPU_TARGETS)}"):
    gpu_compile.main(tmp_path, ["h100", "v5e"], [768])
