"""The calls from the training step to attention: few, and those that the architecture names."""

import re
import sys
from pathlib import Path

import jax
import pytest

from configs import tiny
from resjax.nn import attention
from resjax.train import experiment, program

ROOT = Path(__file__).parents[2]
# Combinator, mark of its own lines in the document, most calls.
SYSTEMS = [("standard", "c", 11), ("block_attn_res", "b", 14)]


@pytest.mark.parametrize("microbatches, remat", [(1, "none"), (2, "full")])
@pytest.mark.parametrize("name, mark, most", SYSTEMS)
def test_the_way_of_a_batch_is_short_and_as_documented(
  name, mark, most, microbatches, remat, monkeypatch
):
  found = call_path(name, microbatches, remat, monkeypatch)
  shown = "\n".join([f"{len(found)} calls:", *map(" ".join, found)])
  assert len(found) <= most, shown
  assert found == documented(mark + "m" * (microbatches > 1)), shown


def call_path(name, microbatches, remat, monkeypatch):
  """File and name of the functions of resjax from the training step to attention, by tracing."""
  c = tiny.get_config()
  c.model.residual.name = name
  c.model.update(num_layers=4, d_model=8, num_heads=2, num_kv_heads=1, mlp_dim=8, remat=remat)
  c.train.microbatches = microbatches
  programs = program.build(experiment.build(c, jax.devices()[:1]))
  paths = []

  def record(q, *args, **options):
    paths.append(resjax_functions(sys._getframe(1)))
    return q

  monkeypatch.setattr(attention, "causal_attention", record)
  jax.eval_shape(programs.train_step, programs.state, programs.batch)
  return max(paths, key=len)  # shapes alone are asked for too, by a shorter way


def resjax_functions(frame):
  """File and name of the functions of resjax that a frame stands in, from `train_step` on."""
  found = []
  while frame is not None:
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(ROOT / "resjax"):
      name = frame.f_code.co_qualname.rpartition("<locals>.")[2]
      found.insert(0, (path.relative_to(ROOT / "resjax").as_posix(), name))
      if name == "train_step":
        return found
    frame = frame.f_back
  raise AssertionError(f"no training step among {found}")


def documented(marks):
  """The lines of the document that have one of these marks or none."""
  text = (ROOT / "docs" / "architecture.md").read_text()
  lines = re.findall(r"^   ([ cbm]) (\S+\.py) +(\S+)  +\S.*$", text, re.MULTILINE)
  return [(path, name) for who, path, name in lines if who in f" {marks}"]


def test_the_files_that_the_document_names_exist():
  text = (ROOT / "docs" / "architecture.md").read_text()
  named = set(re.findall(r"(?:resjax|configs|launch|tests)/[\w/]+(?:\.py|/)(?![\w/])", text))
  assert len(named) > 15
  assert [path for path in sorted(named) if "NAME" not in path and not (ROOT / path).exists()] == []


def test_the_reading_order_is_short_and_has_the_lines_that_it_says():
  text = (ROOT / "docs" / "architecture.md").read_text().partition("## A reading order")[2]
  rows = re.findall(r"^\| `(\S+\.py)` \| (\d+) \|", text.partition("\n## ")[0], re.MULTILINE)
  assert 0 < len(rows) <= 10
  found = {path: len((ROOT / path).read_text().splitlines()) for path, _ in rows}
  assert found == {path: pytest.approx(int(said), rel=0.1, abs=10) for path, said in rows}
