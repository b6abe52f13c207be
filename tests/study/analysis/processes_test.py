"""Several processes together measure what one process measures alone."""

import sys

import numpy as np
import pytest
import safetensors.numpy

from resjax.base.sharding import Layout
from resjax.study.analysis.alignment import Alignment
from tests.data.conftest import make_texts
from tests.helpers import pretrained
from tests.helpers.alignment_process import ROWS, measured
from tests.helpers.runs import ends, start_together


@pytest.mark.slow
def test_two_processes_find_what_one_finds():
  found = ends(start_together(2, [sys.executable, "-m", "tests.helpers.alignment_process"]))
  one = measured(Layout(), np.arange(ROWS))
  assert one.num_rows == 2 * ROWS - 1
  for code, output in found:
    assert code == 0, output
    line = next(line for line in output.splitlines() if line.startswith("json|"))
    check(Alignment.from_json(line.removeprefix("json|")), one)


@pytest.mark.release
def test_a_tuned_lens_of_two_processes_is_that_of_one(tmp_path):
  folder, text = pretrained.folder(tmp_path), tmp_path / "text.txt"
  text.write_text(" ".join(make_texts(100)))
  flags = ["--what=lens", f"--hf={folder}", f"--data={text}", "--tokens=1024", "--seq_len=32"]
  flags += ["--batch_size=8", "--steps=2", "--words=16"]
  found = []
  for count in (1, 2):
    out = tmp_path / str(count)
    command = [sys.executable, "-m", "resjax", "inspect", *flags, f"--out={out}"]
    for code, output in ends(start_together(count, command)):
      assert code == 0, output
    found.append(safetensors.numpy.load_file(out / "lens.safetensors"))
  assert np.any(found[0]["weights"])
  for name, values in found[0].items():
    np.testing.assert_allclose(found[1][name], values, atol=1e-5, err_msg=name)


def check(found, one):
  assert (found.num_rows, found.positions) == (one.num_rows, one.positions)
  for name, group in one.readings["closed"].items():
    other = found.readings["closed"][name]
    assert (other.num_tokens, other.num_kl_tokens) == (group.num_tokens, group.num_kl_tokens)
    assert other.shifts == group.shifts
    for metric, values in group.metrics.items():
      np.testing.assert_allclose(other.metrics[metric], values, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(found.depth_weights.weights, one.depth_weights.weights, atol=1e-6)
