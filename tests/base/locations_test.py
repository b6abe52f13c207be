"""What paths name, and how files are written where there are no folders and no appends."""

import errno
import os
import pathlib
import re
import subprocess
import sys

import pytest

from resjax.base import locations

ROOT = pathlib.Path(__file__).parents[2]


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
    "from resjax.base import locations\n"
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


def test_a_text_that_finds_no_room_is_named_and_leaves_nothing(tmp_path):
  file = tmp_path / "new" / "notes.txt"
  code = (
    "import pathlib, resource, sys; from resjax.base import locations\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
    "locations.write_text(pathlib.Path(sys.argv[1]), 'x' * 100)"
  )
  command = [sys.executable, "-c", code, str(file)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert f"OSError: cannot write {file} (File too large); make room there" in done.stderr
  assert not list(file.parent.iterdir())
  code = code.replace("10, 10", "1000, 1000")
  subprocess.run([sys.executable, "-c", code, str(file)], cwd=ROOT, check=True)
  assert file.read_text() == "x" * 100


@pytest.mark.parametrize(
  "name", ["..", "a/..", "a/../b", "../x", "/etc/passwd", "", ".", "a\0b", "..\\x", "C:/x", 3, None]
)
@pytest.mark.parametrize("root", ["runs/x", "gs://bucket/run"])
def test_names_that_are_not_plainly_below_a_folder_are_refused(root, name):
  with pytest.raises(ValueError, match=r"^m.json: files is .*: a name below .* is allowed$"):
    locations.inside(locations.path(root), name, "m.json: files")


def test_links_may_not_leave_a_folder_but_may_stay_in_it(tmp_path):
  root = tmp_path / "root"
  (root / "a").mkdir(parents=True)
  (root / "within").symlink_to("a")
  (root / "out").symlink_to(tmp_path)
  (root / "a" / "file").symlink_to(tmp_path / "file")
  assert locations.inside(root, "within/x", "m.json") == root / "within" / "x"
  for name in ("out", "out/x", "a/file", "within/file"):
    with pytest.raises(ValueError, match=f"^m.json is '{name}', which a link leads out of"):
      locations.inside(root, name, "m.json")
    assert locations.inside(root, name, "m.json", links=tmp_path) == root / name


def test_a_lock_is_no_link_and_nothing_is_cut(tmp_path):
  (tmp_path / "link").symlink_to(tmp_path / "victim")
  with pytest.raises(OSError, match="link"):
    locations.open_lock(tmp_path / "link")
  assert not (tmp_path / "victim").exists()
  (tmp_path / "lock").write_text("kept")
  with locations.open_lock(tmp_path / "lock"):
    assert (tmp_path / "lock").read_text() == "kept"


def test_only_regular_files_are_read(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  for place in (tmp_path / "pipe", tmp_path, pathlib.Path("/dev/zero")):
    with pytest.raises(ValueError, match=f"{place} is no regular file"):
      locations.read_bytes(place, 10)


def test_the_way_out_is_that_of_the_cause():
  full, gone = OSError(errno.ENOSPC, "No space left on device"), OSError(errno.ESTALE, "Stale")
  quoted = ValueError("Error writing [OS error 122: EDQUOT Disk quota exceeded]")
  assert locations.way_out(full) == "make room there"
  assert locations.way_out(quoted) == "make room there, or ask for a larger quota"
  try:
    raise ValueError("it failed") from gone
  except ValueError as error:
    assert locations.way_out(error) == "its server has replaced it; mount it again"
  assert locations.way_out(TimeoutError("timed out after 1200 seconds")) is None


def test_a_link_that_leads_nowhere_is_named_with_what_to_do(tmp_path):
  (tmp_path / "link").symlink_to("nowhere")
  with pytest.raises(
    ValueError, match=r"link \(File exists\); move away .*, or set config\.workdir"
  ):
    locations.make_folder(tmp_path / "link", "config.workdir")
