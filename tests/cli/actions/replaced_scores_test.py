"""Results of an evaluation that take the place of those of other settings."""

from absl import logging

from resjax.cli.actions import scoring
from resjax.study.evaluation.texts import summarise


def test_results_of_other_settings_are_not_replaced_in_silence(tmp_path, monkeypatch):
  said = []
  monkeypatch.setattr(logging, "warning", lambda form, *values: said.append(form % values))
  nothing = scoring.Evaluation(summarise([]), [], [])

  def write(**flags):
    said.clear()
    scoring.write(nothing, tmp_path, {"flags": flags})
    return said

  assert write(stride=[64], out=tmp_path) == []
  assert write(stride=[64], out=tmp_path) == []  # asked again
  (line,) = write(stride=[32], limit=4, out=tmp_path)
  assert "flags.stride was [64] and is [32]; flags.limit was None and is 4; another --out" in line
  (tmp_path / "results.json").write_text("{")
  assert write(stride=[64]) == []
