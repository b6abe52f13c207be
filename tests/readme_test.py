"""What README.md shows is true: its Python runs, the files and make targets that it names exist."""

import inspect
import re

import jax
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from tests.helpers import doc_commands
from tests.helpers.fakes import ROOT

PAGE = ROOT / "README.md"
README = PAGE.read_text()
D = 32


class Block(nnx.Module):
  """A block of a model that knows nothing of resjax."""

  def __init__(self, rngs):
    self.norm_1, self.norm_2 = nnx.RMSNorm(D, rngs=rngs), nnx.RMSNorm(D, rngs=rngs)
    self.attention = nnx.MultiHeadAttention(4, D, decode=False, rngs=rngs)
    self.mlp = nnx.Linear(D, D, rngs=rngs)


def test_python_runs_before_and_after():
  before, after = ({} for _ in range(2))
  for block, names in zip(doc_commands.python(PAGE), (before, after), strict=True):
    exec(block, names)
    lines = inspect.cleandoc(block.split("def ", 1)[1]).splitlines()
    assert len(lines) <= 8
  (how,) = re.findall(r"`combinator = (combinators\.build\(.*?\))`", README)
  blocks = [Block(nnx.Rngs(i)) for i in range(12)]
  norm = nnx.RMSNorm(D, rngs=nnx.Rngs(0))
  x = jax.random.normal(jax.random.key(0), (2, 16, D))
  plain = before["forward"](blocks, norm, x)
  for name in ("block_attn_res", "standard", "gate"):
    code = how.replace("block_attn_res", name).replace("768", str(D))
    combinator = eval(code, {"combinators": combinators, "rngs": nnx.Rngs(0)})
    y = after["forward"](combinator, blocks, norm, x)
    np.testing.assert_allclose(y, plain, atol=2e-4)  # eps of norms, over 24 reads


def test_words():
  assert len(README.split()) <= 900


def test_the_number_of_systems():
  numbers = re.findall(r"(\d+) (?:ways|residual systems)", README)
  assert numbers == [str(len(combinators.names()))] * 2


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([\w./]+)\)", README))))
def test_linked_files_exist(path):
  assert (ROOT / path).exists()


def test_named_files_and_targets_exist():
  pages = [README, (ROOT / "docs/training.md").read_text(), (ROOT / "docs/systems.md").read_text()]
  text = "\n".join(pages)
  files = set(re.findall(r"(?:configs|docs)/[\w/]+\.py", text))
  assert len(files) >= 5 and all((ROOT / file).is_file() for file in files), files
  targets = set(re.findall(r"make ([a-z-]+)", re.sub(r"^[^`\n]*$", "", text, flags=re.MULTILINE)))
  targets |= set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE))
  assert {"train", "test", "docs", "compare"} <= targets
  defined = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
  assert targets <= defined
