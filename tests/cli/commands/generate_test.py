"""resjax generate continues texts with Hugging Face models; together_test.py has those of runs."""

import json
import sys

import pytest

from tests.helpers import pretrained, runs

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "resjax", "generate", "--temperature=0", "--num_tokens=8"]


def failed(arguments):
  process = runs.start(arguments)
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 1 and output.count("\n") == 1, output
  return output


def test_a_folder_with_a_setting_to_ignore(tmp_path):
  folder = pretrained.folder(tmp_path, "smollm3")
  command = [*COMMAND, f"--hf={folder}", "--prompt=width"]
  text = runs.finish(command)
  assert text.startswith("width") and len(text) > len("width\n")
  path = folder / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_ratio": 3}))
  assert "ignore it with ignore=('rope_ratio',)" in failed(command)
  assert runs.finish([*command, "--hf_ignore=rope_ratio"]) == text


def test_one_model():
  assert failed(COMMAND).startswith("error: no model; give the folder of a run, for example ")
  both = failed([*COMMAND, "--hf=a", "--checkpoint=b"])
  assert both == "error: --checkpoint=b and --hf=a are two models; give one of them\n"
