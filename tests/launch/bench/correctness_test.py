"""The cases of the check of the kernels on a GPU, and what it finds in the interpreter."""

import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from launch.bench import correctness


def test_cases_reach_every_kernel_dtype_and_width():
  cases = correctness.cases()
  assert len(cases) >= 90 and len({str(case) for case in cases}) == len(cases)
  dtypes = {"float32", "float16", "bfloat16"}
  for kind in ("direct", "block", "merge", "mhc", "gated"):
    own = [case for case in cases if case.kind == kind]
    assert {case.dtype for case in own} == dtypes - (
      {"float16"} if kind in ("mhc", "gated") else set()
    )
    assert {768, 2048} <= {case.width for case in own}
  assert {4096, 7168, 8192} <= {case.width for case in cases}
  assert max(case.tokens * case.width * case.recent for case in cases) > 2**30


def test_the_first_cases_are_every_kernel_at_two_shapes():
  first = list(correctness.first_cases())
  assert correctness.cases()[: len(first)] == first
  shapes = {(case.tokens, case.width, case.dtype) for case in first}
  assert shapes == {(1001, 768, "float32"), (4099, 2048, "bfloat16")}
  forms = {(case.kind, case.threaded) for case in first}
  assert len(first) == 2 * len(forms)
  assert {kind for kind, _ in forms} == {case.kind for case in correctness.cases()}


def test_a_wrong_kernel_and_other_bits_are_told(monkeypatch):
  case = correctness.Case("direct", 5, 128, recent=2)
  operation = correctness._operation

  def check(wrong):
    def run(case, options, inputs):
      is_kernel = options["implementation"] != "reference"
      (out,) = operation(case, {"implementation": "reference"}, inputs)
      return (wrong(out) if is_kernel else out,)

    monkeypatch.setattr(correctness, "_operation", run)
    return correctness.check(case, 1, False)

  right = check(lambda out: out)
  assert right["status"] == "ok" and right["out_error"] < 1e-6 and right["same_bits"]
  off = check(lambda out: 1.001 * out)
  assert off["status"] == "wrong" and off["out_error"] == pytest.approx(1e-3, rel=1e-2)
  assert check(lambda out: out * float("nan"))["status"] == "wrong"


@pytest.mark.skipif(
  not hasattr(plgpu, "InterpretGPUParams"), reason="this JAX has no interpreter of GPU kernels"
)
@pytest.mark.release
def test_the_kernels_are_right_in_the_interpreter():
  cases = [case for case in correctness.cases() if case.tokens <= correctness.SMALL]
  assert len(cases) == 16
  assert {case.kind for case in cases} == {"direct", "block", "merge", "mhc", "fixed", "gated"}
  for case in cases:
    found = correctness.check(case, 1, True)
    assert found["status"] == "ok" and found["same_bits"], (case, found)
