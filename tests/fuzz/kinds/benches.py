"""Flags of the benchmarks, with values that none of them may take."""

from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz.cases import Case, must_refuse

_FLAGS = {
  "launch.bench.step": ["model", "microbatches", "layers", "layers_per_block", "d_model", "rows",
                        "seq_len", "remat", "steps", "repeats"],
  "launch.bench.checkpoint": ["megabytes", "arrays", "repeats"],
  "launch.bench.decode": ["rows", "tokens", "steps", "repeats"],
  "launch.bench.prefill": ["layers", "d_model", "repeats"],
  "launch.bench.compile": ["rounds"],
  "launch.bench.gpu_day": ["minutes"],
  "launch.bench.train": ["steps"],
}  # fmt: skip
_VALUES = ("-1", "abc", "", "None", "é", "[/x]", "a\nb", "--", "x" * 3000, "\x1b[31m")


@st.composite
def flag(draw: st.DrawFn, original: Path) -> Case:
  """Draws a benchmark, and a flag that is out of range, of another type, or unknown."""
  command = draw(st.sampled_from(sorted(_FLAGS)))
  name, value = draw(st.sampled_from(_FLAGS[command])), draw(st.sampled_from(_VALUES))
  if draw(st.integers(0, 5)) == 0:
    name = draw(st.sampled_from(["unknown", f"{name}x", ""]))
  return Case(
    kind="bench",
    command=command,
    arguments=(f"--{name}={value}",),
    what=f"{command} --{name}={value[:40]!r}",
    names=(name or "--=", value[:20], "flag"),
    right=must_refuse,
  )
