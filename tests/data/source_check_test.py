"""What is said of sources before anything is built: there, not there, or not to be told."""

import time

import pytest

from resjax.data import source_check
from resjax.data.config import DataConfig, TokenizerConfig
from tests.data.conftest import make_texts, write_folder


def found(source, **changes):
  values = {"root": "data", "seq_len": 16, "tokenizer": TokenizerConfig("byte")} | changes
  config = DataConfig(corpora={"web": {"source": str(source)}}, **values)
  (finding,) = source_check.check(config)
  return finding


def test_files_are_counted(tmp_path):
  finding = found(write_folder(tmp_path / "text", make_texts(3)))
  assert finding.ok and finding.text.startswith("3 files, 0.00")
  assert finding.what == f"config.data.corpora.web.source={tmp_path / 'text'}"
  finding = found(tmp_path / "nowhere")
  assert finding.ok is False and "is no file or folder, and matches none" in finding.text


def test_what_needs_no_files():
  assert found("python-stdlib").ok


def test_what_only_the_machine_that_builds_can_tell():
  assert found("tfds:c4/en").ok is None
  finding = found("text", built="0123456789ab")
  assert finding.ok is None and "config.data.root=data" in finding.text


def test_without_credentials_a_bucket_cannot_be_told(monkeypatch, tmp_path):
  monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
  monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
  monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
  monkeypatch.setenv("NO_GCE_CHECK", "true")
  finding = found("gs://my-text/web")
  assert finding.ok is None and "gcloud auth application-default login" in finding.text


def test_a_bucket(gcs, bucket):
  finding = found(f"gs://{bucket}-not/web")
  assert finding.ok is False and "no such bucket, file or folder" in finding.text
  gcs.put((bucket, "web/1.txt"), b"x" * 2_000_000)
  finding = found(f"gs://{bucket}/web")
  assert (finding.ok, finding.text) == (True, "1 files, 0.002 GB")
  assert found(f"gs://{bucket}/web/*.txt").ok and found(f"gs://{bucket}/web/*.pq").ok is False
  assert source_check.reachable(f"gs://{bucket}").ok


def test_a_store_that_never_answers(monkeypatch):
  monkeypatch.setattr(source_check, "_SECONDS", 0.01)
  with pytest.raises(TimeoutError, match=r"no answer in 0\.01 seconds"):
    source_check._in_time(lambda: time.sleep(1))
