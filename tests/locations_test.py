"""What paths name, and how files are written where there are no folders and no appends."""

import pathlib
import re
import subprocess
import sys

import pytest

from resjax import locations

ROOT = pathlib.Path(__file__).parents[1]


def test_a_local_path_stays_what_it_was(tmp_path):
  assert locations.path("runs/tiny", "config.workdir") == pathlib.Path("runs/tiny")
  assert locations.path(tmp_path) == tmp_path
  assert locations.is_local(tmp_path) and not locations.is_local(locations.path("gs://b/run"))


@pytest.mark.parametrize("text", ["gs://bucket/run", "gs://bucket/a run/1"])
def test_a_path_of_an_object_store_is_not_made_a_local_one(text):
  found = locations.path(text)
  assert str(found) == text and str(found / "x") == f"{text}/x"
  assert str(locations.path(found)) == text


@pytest.mark.parametrize("text", ["gs:/bucket/run", "gs:///run", "gcs://bucket/run", "s3:/b"])
def test_what_only_looks_like_one_is_refused(text):
  with pytest.raises(ValueError, match=re.escape(f"config.workdir={text!r} is neither local nor")):
    locations.path(text, "config.workdir")


def test_what_cannot_take_checkpoints_is_refused():
  with pytest.raises(ValueError, match=r"neither local nor gs://BUCKET/NAME; mount it \(for inst"):
    locations.path("s3://bucket/run", "config.workdir", writable=True)


def test_a_missing_package_is_named():
  code = (
    "import sys; sys.modules['gcsfs'] = None\n"
    "from resjax import locations\n"
    "locations.path('gs://bucket/run', 'config.workdir')"
  )
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
  message = "ValueError: config.workdir='gs://bucket/run' needs gcsfs: pip install 'resjax[gcs]'"
  assert done.stderr.splitlines()[-1] == message


def test_text_is_written_and_added(tmp_path, bucket):
  for folder in (tmp_path / "new", locations.path(f"gs://{bucket}/new")):
    file = folder / "notes.txt"
    for text in ("first\n", "zweite Fassung: ä\n"):
      locations.write_text(file, text)
      assert file.read_text() == text
    locations.append_text(file, "more\n")
    locations.append_text(folder / "other.txt", "begun\n")
    assert file.read_text() == "zweite Fassung: ä\nmore\n"
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "other.txt"]


def test_the_version_changes_with_every_write(bucket):
  file = locations.path(f"gs://{bucket}/x")
  seen = [locations.version(file)]
  for _ in range(3):
    file.write_text("same")
    assert locations.version(file) == locations.version(file)
    seen.append(locations.version(file))
  assert seen[0] is None and len(set(seen)) == 4


def test_what_others_write_is_seen_at_once(gcs, bucket):
  folder = locations.path(f"gs://{bucket}/run")
  (folder / "a").write_text("1")
  assert [path.name for path in folder.iterdir()] == ["a"]
  gcs.put((bucket, "run/b"), b"of TensorStore")
  assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
  assert (folder / "b").exists()


def test_a_folder_written_here_arrives(gcs, bucket, tmp_path):
  with locations.written_locally(tmp_path / "x") as folder:
    assert folder == tmp_path / "x"
  with locations.written_locally(locations.path(f"gs://{bucket}/profile")) as folder:
    (folder / "plugins").mkdir()
    (folder / "plugins" / "trace").write_bytes(b"\0\1")
    (folder / "memory").write_bytes(b"m")
  assert not folder.exists()
  assert gcs.names(f"{bucket}/") == ["profile/memory", "profile/plugins/trace"]
  assert gcs.get((bucket, "profile/plugins/trace")).data == b"\0\1"


def test_a_circle_of_links_is_refused_by_whoever_opens_it(tmp_path):
  (tmp_path / "a").symlink_to("b")
  (tmp_path / "b").symlink_to("a")
  found = locations.inside(tmp_path, "a", "index.json: weight_map")
  with pytest.raises(OSError, match="symbolic links"):
    locations.read_bytes(found, 10)
