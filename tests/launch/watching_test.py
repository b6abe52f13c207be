"""`watch` prints the losses of a run that goes on, from its workdir."""

import json

import pytest

from launch import watching


def test_it_prints_what_is_there_and_what_is_added(tmp_path, monkeypatch, capsys):
  path = tmp_path / "metrics.jsonl"
  turns = []

  def write(*records):
    with open(path, "a") as file:
      file.writelines(json.dumps(record) + "\n" for record in records)

  def sleep(_):
    turns.append(capsys.readouterr().out)
    if len(turns) == 1:
      write(*({"step": step, "train/loss": 5.0 - step} for step in range(3)))
    elif len(turns) == 2:
      write({"step": 3, "time/data": 1.0}, {"step": 3, "validation/loss": 2.5})
    else:
      raise KeyboardInterrupt

  monkeypatch.setattr(watching.time, "sleep", sleep)
  with pytest.raises(KeyboardInterrupt):
    watching.follow(str(tmp_path), 2, 1.0)
  assert "metrics.jsonl is not there yet, or --workdir is another" in turns[0]
  assert [line.split(":")[0] for line in turns[1].splitlines()] == ["step 0", "step 1", "step 2"]
  assert turns[2].startswith("step 3: validation loss 2.5") and turns[2].count("\n") == 1


def test_without_a_folder():
  with pytest.raises(ValueError, match="--workdir is missing"):
    watching.follow("", 10, 1.0)
