"""What launchers check before anything is created: each mistake is named with what to do."""

import pytest

from tests.helpers.stand_ins import ROOT, StandIns

TPU = ("--name=run1", "--zone=us-west4-a", "--topology=v5litepod-16")
TRAIN = ("resjax", "train", "--config=gpt2_124m", "--config.train.microbatches=1")
BUCKET = (
  "--config.workdir=gs://my-bucket/run1",
  "--config.data.corpora.web.source=gs://my-bucket/t",
)
SHARED = ("--shared_folder=/mnt/disk", "--nofit")


@pytest.fixture
def create(tmp_path):
  """A function of flags and a command: the exit code and the output of `tpu create`, and calls."""
  tools = StandIns(tmp_path / "tools", "gcloud")

  def run(flags, *command):
    flags = [*TPU, "--poll_seconds=0", *flags]
    code, output = tools.run("launch.tpu", "create", *flags, "--", *command)
    return code, output, len(tools.calls)

  return run


def test_all_mistakes_are_named_and_nothing_is_created(create):
  wrong = ("--config.workdir=gs://B/x", "--config.mesh.fsdp=32", "--config.data.seq_len=64")
  code, output, calls = create((), *TRAIN, *wrong)
  assert code == 1 and not calls
  last = output.splitlines()[-1]
  for words in (
    "config.data.corpora.web.source=data/text/web is not on the hosts, whose disks are new",
    "give --config.data.corpora.web.source=gs://BUCKET/text",
    "config.workdir=gs://B/x is not gs://BUCKET/FOLDER",
    "does not fit 16 devices",
    "set --config.mesh.data=1 --config.mesh.fsdp=16",
  ):
    assert words in last, last


@pytest.mark.parametrize(
  ("wrong", "words"),
  [
    ("--config.train.batch_size=24", "config.train.batch_size=24"),
    ("--config.train.bath_size=24", "bath_size"),
    ("--config.model.residual.name=atn_res", "atn_res"),
  ],
)
def test_a_config_that_cannot_be_built(create, wrong, words):
  code, output, calls = create(SHARED, *TRAIN, *BUCKET, wrong)
  assert code == 1 and not calls and words in output.splitlines()[-1]


def test_what_cannot_be_checked_is_said(create, monkeypatch):
  monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
  code, output, _ = create(("--dry_run", *SHARED), *TRAIN, *BUCKET)
  assert code == 0, output
  lines = output.partition("\n\n")[0].splitlines()[1:]
  assert [line.split()[1] for line in lines] == ["source", "bucket", "config", "mesh", "fit"]
  assert "no credentials here" in lines[0] and "no credentials here" in lines[1]
  assert "resjax aot --config=gpt2_124m" in lines[4] and "--topology=v5e:4x4" in lines[4]
  code, output, _ = create(("--dry_run",))
  assert code == 0 and output.startswith("# nothing is checked; what will run, behind --, would be")


def test_a_config_of_ones_own_is_run_unless_it_is_a_dry_run(create, tmp_path):
  ran, config = tmp_path / "ran", tmp_path / "mine.py"
  tiny = (ROOT / "configs" / "tiny.py").read_text()
  config.write_text(f"{tiny}\nopen({str(ran)!r}, 'w')\n")
  command = ("resjax", "train", f"--config={config}", BUCKET[0], "--config.train.batch_size=16")
  code, output, _ = create(("--dry_run",), *command)
  assert (
    code == 0 and not ran.exists() and "--dry_run runs no config file but resjax's own" in output
  )
  code, output, calls = create(("--nofit",), *command, "--config.mesh.fsdp=3")
  assert code == 1 and ran.exists() and not calls and "does not fit 16 devices" in output
