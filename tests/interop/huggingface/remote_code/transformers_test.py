"""transformers runs what is written with code: logits, greedy tokens, and the way back."""

import pytest

from resjax.interop import huggingface
from tests.interop.huggingface.remote_code import folders
from tests.interop.huggingface.remote_code.cases import CASES

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_function_and_back(case, tmp_path):
  decoder = case.write(tmp_path / "model", shard_bytes=20_000)
  difference, largest, wrong = folders.compare(decoder, folders.model(tmp_path / "model"))
  print(f"{case}: logits {difference:.1e} of {largest:.1f}, {wrong} greedy tokens differ")
  assert difference <= 1e-4
  assert largest > 1
  assert wrong == 0
  folders.assert_same(decoder, huggingface.load(tmp_path / "model"))
