"""Built data of a stranger: names in them lead nowhere else, and reading changes nothing."""

import json

import pytest

from resjax.data import dataset, eval_text
from tests.data.built.conftest import config_of, files, find_all

# What a stranger may write into a summary: names that lead out of the root.
HOSTILE = ["../victim", "rows/../../victim", "{victim}", "rows/link", "rows", "", "tokenizers/x"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("key", ["tokenizer", "text", "rows"])
def test_reading_a_strangers_data_changes_nothing(copied, tmp_path, key, name):
  root, config, mark = copied
  victim = tmp_path / "victim"
  (victim / "deep").mkdir(parents=True)
  (victim / "deep" / "file").write_text("precious")
  (root / "rows" / "link").symlink_to(victim)
  path = root / f"summary-{mark}.json"
  values = json.loads(path.read_text())
  (values if key == "tokenizer" else values["corpora"]["a"])[key] = name.format(victim=victim)
  del values["sha256"]
  path.write_text(json.dumps(values | {"sha256": summary_digest(values)}))
  (root / ".lock").unlink()
  before = files(tmp_path)
  with pytest.raises(ValueError, match=r"summary-.*(allowed|leads|damaged|missing)") as caught:
    find_all(config, mark)
  assert "\n" not in str(caught.value)
  assert files(tmp_path) == before


def summary_digest(values):
  return dataset.summary._digest(values)


def test_reading_makes_no_file_where_there_are_no_data(tmp_path):
  assert dataset.find(str(tmp_path / "root"), "0" * 12) is None
  assert dataset.find_texts(str(tmp_path / "root"), "0" * 12) is None
  config = config_of(tmp_path)
  assert eval_text.texts_of_dataset(config, "0" * 12, "validation") is None
  with pytest.raises(ValueError, match="allowed: 12 hexadecimal digits"):
    dataset.find(str(tmp_path / "root"), "../../x")
  assert list(tmp_path.iterdir()) == []


def test_a_root_that_leads_out_of_the_cache_is_refused(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  with pytest.raises(ValueError, match=r"config.data.root=.* a name below .*, without \.\."):
    dataset.find("gs://bucket/../../../victim", "0" * 12)


def test_a_user_without_a_home_is_told_where_copies_can_lie(monkeypatch):
  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
  monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as where nobody knows the user
  with pytest.raises(ValueError, match=r"who has no home folder; set \$XDG_CACHE_HOME"):
    dataset.find("gs://bucket/data", "0" * 12)
