"""What README.md shows is true: its Python runs, the files and make targets that it names exist."""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_python_runs():
  assert PYTHON
  names = {}
  for block in PYTHON:
    exec(block, names)
  assert names["y"].shape == (2, 16, 64) and np.isfinite(names["y"]).all()
  assert names["model"].combinator.num_layers == 12


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([\w./]+)\)", README))))
def test_linked_files_exist(path):
  assert (ROOT / path).exists()


def test_named_files_and_targets_exist():
  files = set(re.findall(r"(?:configs|docs)/[\w/]+\.py", README))
  assert len(files) >= 5 and all((ROOT / file).is_file() for file in files), files
  targets = set(re.findall(r"make ([a-z-]+)", README))
  assert {"train", "test", "compare"} <= targets
  defined = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
  assert targets <= defined
