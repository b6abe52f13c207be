"""What launchers check before anything is created: each mistake is named with what to do."""

import subprocess

import pytest

from launch import flag_check
from launch.tpu.code import Code
from tests.helpers.fakes import ROOT, FakeTools

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
  tools = FakeTools(tmp_path / "tools", "gcloud")

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


@pytest.fixture
def folder(tmp_path):
  """A folder that pip installs, with a config of its own and a module that this imports."""
  folder = tmp_path / "mine"
  folder.mkdir()
  (folder / "setup.py").touch()
  (folder / "sizes.py").write_text("STEPS = 7\n")
  tiny = (ROOT / "configs" / "tiny.py").read_text().replace("steps=300", "steps=sizes.STEPS")
  (folder / "own.py").write_text(f"import sizes\n{tiny}")
  return folder


@pytest.fixture
def dry_run(tmp_path):
  """A function of a launcher and a command: exit code and last line of its dry run."""
  tools = FakeTools(tmp_path / "tools", "gcloud", "kubectl", "sbatch", "squeue")
  tpu = ("create", *TPU, "--folder=.", "--nofit")
  gke = ("run", "--name=run1", "--image=x", "--topology=v5litepod-16", "--nofit")
  usual = {"tpu": tpu, "gke": gke, "slurm": ("run", "--name=run1", "--nofit"), "local": ()}

  def run(launcher, cwd, *command):
    words = (*usual[launcher], "--dry_run", "--", *command)
    code, output = tools.run(f"launch.{launcher}", *words, cwd=cwd)
    assert not tools.calls
    return code, output.splitlines()[-1]

  return run


OWN = ("resjax", "train", "--config=own.py", BUCKET[0], "--config.train.batch_size=16")


@pytest.mark.parametrize(
  ("launcher", "command", "words"),
  [
    (
      "tpu",
      (*OWN, "--config.train.stpes=5"),
      "--config.train.stpes=5: there is no setting 'stpes'",
    ),
    ("gke", (*OWN, "--dry_rnu"), "Unknown command line flag 'dry_rnu'. Did you mean: dry_run"),
    ("slurm", (*OWN, "--config.seed=x"), "config.seed"),
    ("local", (*OWN, "--config.data.sourc=x"), "there is no setting 'sourc'"),
    ("local", ("python", "-m", "launch.train", "--config=tiny", "--config.mesh.fsp=2"), "'fsp'"),
  ],
)
def test_every_flag_is_checked_in_every_dry_run(dry_run, folder, launcher, command, words):
  code, last = dry_run(launcher, folder, *command)
  assert code == 1 and last.startswith("error: resjax train: ") and words in last, last


def test_a_config_of_ones_own_is_run(dry_run, folder):
  assert dry_run("tpu", folder, *OWN)[0] == 0
  code, last = dry_run("tpu", folder, *OWN, "--config.mesh.fsdp=3")
  assert code == 1 and "does not fit 16 devices" in last


@pytest.mark.parametrize(
  ("command", "words"),
  [
    (("resjax", "trian"), "resjax has no command 'trian'; did you mean train?"),
    (("resjax", "train", "--config=base:gtp2", BUCKET[0]), "style 'gtp2' is not known; choose one"),
    (("resjax", "train", "--config=tiny:x", BUCKET[0]), "takes 0 positional arguments but 1 was"),
    (("resjax", "train", "--workdr=x"), "resjax train: Unknown command line flag 'workdr'"),
    (("env", "A=b", "resjax", "evaluate", "--checkpiont=x"), "Did you mean: checkpoint"),
    (("/x/bin/resjax", "sweep", "--config=ablations/compare"), "config.workdir='runs/compare' is"),
  ],
)
def test_commands_other_than_a_plain_training(dry_run, folder, command, words):
  code, last = dry_run("gke", folder, *command)
  assert code == 1 and words in last, last


def test_flags_may_stand_before_their_values(dry_run, folder):
  words = ("--config", "own.py", *BUCKET[0].split("="), "--config.train.batch_size", "16")
  code, last = dry_run("gke", folder, "resjax", "train", *words, "--config.train.steps", "-1")
  assert code == 1 and "config.train.steps=-1" in last


def test_words_behind_a_flag_without_a_value_are_no_value_of_it():
  flag_check.check(["resjax", "report", "--debug", "runs/a"])


def test_hosts_get_the_config_of_the_last_commit_alone(folder):
  def git(*words):
    name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *name, *words], cwd=folder, check=True)

  def refused():
    try:
      Code(folder).require_config("own.py", "")
    except ValueError as error:
      assert "hosts get the last commit, and this is not in it; commit it" in str(error)
      return True
    return False

  git("init", "--quiet")
  seen = [refused()]
  git("add", ".")
  seen.append(refused())
  git("commit", "--quiet", "--message=all")
  seen.append(refused())
  (folder / "own.py").write_text("changed since")
  assert [*seen, refused()] == [True, True, False, True]


@pytest.mark.parametrize("name", ["data/own.py", "a/.venv-2/own.py", "runs/own.py"])
def test_a_config_that_is_left_out_of_a_folder_is_refused(tmp_path, name):
  code = Code(tmp_path, ".")
  with pytest.raises(ValueError, match=f"--config={name}: hosts do not get "):
    code.require_config(name, "")
  code.require_config("a/data/own.py", "")  # only at the top are these what runs write


def test_hosts_get_the_config(dry_run, folder, tmp_path):
  own = str(folder / "own.py")
  code, last = dry_run("tpu", folder, *OWN[:2], f"--config={own}", *OWN[3:])
  assert code == 1 and "give --config=own.py, and run this there" in last
  (tmp_path / "other.py").write_text((ROOT / "configs" / "tiny.py").read_text())
  code, last = dry_run("tpu", folder, *OWN[:2], "--config=../other.py", *OWN[3:])
  assert code == 1 and "--config=../other.py is not in" in last and "what hosts get" in last
  subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
  (folder / ".gitignore").write_text("own.py\n")
  (folder / "pkg-1.0-py3-none-any.whl").touch()
  tools = FakeTools(tmp_path / "more", "gcloud")
  for sent, words in (
    ((), "--config=own.py: hosts get the last commit, and this is not in it"),
    (("--wheel=pkg-1.0-py3-none-any.whl",), "--config=own.py: hosts get the wheel alone; give the"),
  ):
    given = (*TPU, *sent, "--nofit", "--dry_run", "--", *OWN)
    code, output = tools.run("launch.tpu", "create", *given, cwd=folder)
    assert code == 1 and words in output.splitlines()[-1], output
