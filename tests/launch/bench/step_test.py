"""The benchmark of a training step runs, and reports both systems."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.release
def test_a_small_decoder(tmp_path):
  sizes = ["--layers=2", "--layers_per_block=1", "--d_model=128", "--rows=1", "--seq_len=32"]
  command = [sys.executable, "-m", "launch.bench.step", *sizes, "--repeats=2", f"--out={tmp_path}"]
  environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / "bench_step.json").read_text())
  assert report == json.loads(done.stdout)
  for unit, words in {"median_ms": "", "core_ms": ", time of cores"}.items():
    standard, block = (report["cases"][name][unit] for name in ("standard", "block_attn_res"))
    assert report[f"block_attn_res over standard{words}"] == pytest.approx(block / standard)
  # A query and a key gain for each of 4 sublayers and the output.
  parameters = report["parameters"]
  assert parameters["block_attn_res"] - parameters["standard"] == 2 * 5 * 128


@pytest.mark.parametrize(("model", "width"), [("gpt2_124m", 768), ("llama_1p3b", 2048)])
@pytest.mark.slow
def test_the_decoder_of_a_config(model, width):
  program = (
    "import sys; from absl import flags; from launch.bench import step\n"
    "flags.FLAGS(sys.argv); run = step._run('block_attn_res')\n"
    "print(run.decoder.d_model, run.decoder.residual.name, run.train.batch_size, "
    "run.train.microbatches, run.layout.mesh.size)"
  )
  flags = [f"--model={model}", "--rows=32", "--microbatches=4"]
  environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    [sys.executable, "-c", program, *flags], cwd=REPOSITORY, env=environment, capture_output=True,
    text=True, check=False,
  )  # fmt: skip
  assert done.stdout == f"{width} block_attn_res 32 4 1\n", done.stderr
