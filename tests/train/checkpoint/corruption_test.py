"""Whatever happens to a file of a checkpoint is noticed, and the one before it is used."""

import pathlib
import shutil

import numpy as np
import pytest
from etils import epath

from resjax.base import manifest
from resjax.train.checkpoint.reader import restore_params
from tests.helpers.checkpoints import abstract, assert_restores, fill, opened, small_state

DAMAGES = ("truncated", "emptied", "deleted", "flipped")


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("good")
  fill(folder, 10, 20)
  return folder


def files(checkpoint: pathlib.Path) -> list[pathlib.Path]:
  return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def damage(path: pathlib.Path, kind: str) -> None:
  content = bytearray(path.read_bytes())
  assert content
  if kind == "deleted":
    path.unlink()
  elif kind == "emptied":
    path.write_bytes(b"")
  elif kind == "truncated":
    path.write_bytes(content[:-1])
  else:
    bit = np.random.default_rng(len(content)).integers(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_files_of_every_kind_are_there(good):
  names = [path.relative_to(good / "20").as_posix() for path in files(good / "20")]
  kinds = ("_CHECKPOINT_METADATA", "commit_success.txt", "manifest.json", "arrays/metadata")
  kinds += ("data/metadata", "params/_METADATA", "params/_sharding", "params/manifest.ocdbt")
  kinds += ("params/commit_success.txt", "optimizer/array_metadatas/process_0")
  assert not set(kinds) - set(names)
  for folder in ("params/d/", "params/ocdbt.process_0/d/", "optimizer/ocdbt.process_0/"):
    assert [name for name in names if name.startswith(folder)]
  assert {*manifest.read(epath.Path(good / "20")).files, manifest.FILE_NAME} == set(names)


@pytest.mark.parametrize("kind", DAMAGES)
def test_every_damage_to_every_file_is_noticed(good, kind):
  checkpoint = epath.Path(good / "20")
  manifest.check(checkpoint)
  for path in files(good / "20"):
    content = path.read_bytes()
    damage(path, kind)
    with pytest.raises(manifest.Damaged, match=path.name):
      manifest.check(checkpoint)
    path.write_bytes(content)
  manifest.check(checkpoint)


def test_no_bit_of_the_list_is_overlooked(good, tmp_path):
  content = (good / "20" / manifest.FILE_NAME).read_bytes()
  folder = epath.Path(tmp_path)
  for bit in range(0, 8 * len(content), 61):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    (tmp_path / manifest.FILE_NAME).write_bytes(changed)
    with pytest.raises(manifest.Damaged):
      manifest.read(folder)


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize(
  "name", ["params/ocdbt.process_0/d/*", "optimizer/_METADATA", "manifest.json", "data/metadata"]
)
def test_the_one_before_is_used_and_the_damaged_one_named(good, tmp_path, kind, name):
  shutil.copytree(good, tmp_path / "run")
  path = sorted((tmp_path / "run" / "20").glob(name))[0]
  damage(path, kind)
  with opened(tmp_path / "run") as checkpoints:
    assert_restores(checkpoints, 10)
    (line,) = checkpoints.said
    assert line.startswith("checkpoint 20 is damaged (") and path.name in line
    assert "going on from checkpoint 10" in line and "\n" not in line
    assert checkpoints.latest == 10
    assert not path.exists()
  fill(tmp_path / "run", 20)
  with opened(tmp_path / "run") as checkpoints:
    assert_restores(checkpoints, 20)
    assert not checkpoints.said


def test_bits_that_go_wrong_before_they_are_written_are_noticed(good, tmp_path):
  """The list of files vouches for the disk, the checksums of arrays for all before it."""
  shutil.copytree(good, tmp_path / "run")
  folder = tmp_path / "run" / "20"
  text = (folder / "arrays" / "metadata").read_text()
  recorded = text.split('"checksum": "')[1][:16]
  (folder / "arrays" / "metadata").write_text(text.replace(recorded, "0123456789abcdef"))
  (folder / manifest.FILE_NAME).unlink()
  with opened(tmp_path / "run") as checkpoints:
    manifest.write(checkpoints.folder / "20", {})
    assert_restores(checkpoints, 10)
    assert "arrays are not those that were saved" in checkpoints.said[0]


@pytest.mark.parametrize("kind", DAMAGES)
def test_killed_before_the_last_files_were_listed(good, tmp_path, kind):
  """They alone are then not vouched for; nothing of what is restored lies in them."""
  shutil.copytree(good, tmp_path / "run")
  (tmp_path / "run" / "20" / manifest.FILE_NAME).unlink()
  manifest.write(epath.Path(tmp_path / "run" / "20"), {}, root=False)
  for name in ("_CHECKPOINT_METADATA", "commit_success.txt"):
    damage(tmp_path / "run" / "20" / name, kind)
  with opened(tmp_path / "run") as checkpoints:
    assert_restores(checkpoints, 20)
    assert not checkpoints.said


def test_without_verify_only_sizes_are_compared(good, tmp_path):
  shutil.copytree(good, tmp_path / "run")
  damage(tmp_path / "run" / "20" / "params" / "_sharding", "flipped")
  with opened(tmp_path / "run", verify=False) as checkpoints:
    assert_restores(checkpoints, 20)
    assert not checkpoints.said
  damage(tmp_path / "run" / "20" / "params" / "_sharding", "truncated")
  with opened(tmp_path / "run", verify=False) as checkpoints:
    assert_restores(checkpoints, 10)
    assert "_sharding has" in checkpoints.said[0]


def test_strict_refuses_and_touches_nothing(good, tmp_path):
  shutil.copytree(good, tmp_path / "run")
  damage(tmp_path / "run" / "20" / "params" / "_METADATA", "flipped")
  state = abstract(small_state(20))
  with opened(tmp_path / "run", strict=True) as checkpoints:
    with pytest.raises(ValueError, match=r"step 20: params/_METADATA was altered.*strict=False"):
      checkpoints.restore(state, None)
    assert checkpoints.latest == 20


def test_no_good_one_is_an_error(good, tmp_path):
  shutil.copytree(good, tmp_path / "run")
  damage(tmp_path / "run" / "10" / "params" / "_METADATA", "flipped")
  damage(tmp_path / "run" / "20" / "commit_success.txt", "deleted")
  with opened(tmp_path / "run") as checkpoints:
    words = r"no checkpoint in .* is good \(step 20: commit_success.txt is missing; step 10: "
    with pytest.raises(ValueError, match=words):
      checkpoints.restore(abstract(small_state(20)), None)
    assert checkpoints.latest == 20


def test_readers_of_parameters_notice_it_too(good, tmp_path):
  shutil.copytree(good / "20", tmp_path / "20")
  params = abstract(small_state(20)).params
  np.testing.assert_array_equal(
    restore_params(tmp_path / "20", params)["scale"], small_state(20).params["scale"]
  )
  damage(tmp_path / "20" / "optimizer" / "_METADATA", "deleted")  # not theirs
  restore_params(tmp_path / "20", params)
  damage(sorted((tmp_path / "20" / "params" / "d").iterdir())[0], "flipped")
  with pytest.raises(ValueError, match=r"checkpoint .*20 is damaged \(params/d/\w+ was altered\)"):
    restore_params(tmp_path / "20", params)
