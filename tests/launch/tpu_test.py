"""Cloud TPU VMs: the exact gcloud calls, and what is left when one of them fails."""

import pathlib
import re
import signal
import time

import pytest

from tests.helpers.fakes import ROOT, FakeTools

NAME = ("--name=run1", "--zone=us-west4-a")
SLICE = ("--topology=v5litepod-16", "--poll_seconds=0")
TRAIN = ("--", "python", "-m", "launch.train", "--config=configs/tiny.py")
WORKDIR = "--config.workdir=gs://bucket/run1"
QUEUED = ["gcloud", "compute", "tpus", "queued-resources"]
STATE = [
  *(*QUEUED, "list", "--zone=us-west4-a"),
  *("--filter=name~/queuedResources/run1$", "--format=value(state.state)"),
]


def launch(cloud, *arguments, cwd=ROOT):
  return cloud.run("launch.tpu", *arguments, cwd=cwd)


def test_create_is_three_calls(cloud):
  more = ("--tier=spot", "--project=p", "--service_account=a@b", "--network=n", "--subnetwork=s")
  code, output = launch(cloud, "create", *NAME, *SLICE, *more)
  assert code == 0, output
  look, request, wait = [call.argv for call in cloud.calls]
  state = [*STATE[:6], "--project=p", *STATE[6:]]
  assert look == wait == state
  assert request == [
    *(*QUEUED, "create", "run1", "--zone=us-west4-a", "--project=p"),
    *("--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite"),
    *("--node-id=run1", "--spot", "--network=n", "--subnetwork=s", "--service-account=a@b"),
    *("--scopes=https://www.googleapis.com/auth/cloud-platform", "--quiet"),
  ]


def test_create_of_several_slices(cloud):
  more = ("--tier=reserved", "--num_slices=2", "--runtime_version=v", "--internal_ip")
  code, output = launch(cloud, "create", *NAME, "--topology=v5p:4x4x4", *more)
  assert code == 0, output
  assert cloud.calls[1].argv[4:] == [
    *("create", "run1", "--zone=us-west4-a", "--accelerator-type=v5p-128", "--runtime-version=v"),
    *("--node-count=2", "--node-prefix=run1", "--reserved", "--network=default", "--internal-ips"),
    *("--scopes=https://www.googleapis.com/auth/cloud-platform", "--quiet"),
  ]


@pytest.mark.parametrize(
  "given, group, asked",
  [
    (["--reservation=r1"], "alpha compute", ["--reservation=r1"]),
    (
      ["--tier=calendar", "--reservation=projects/p/reservations/r1"],
      "alpha compute",
      ["--reservation=projects/p/reservations/r1", "--provisioning-model=reservation-bound"],
    ),
    (
      ["--tier=flex_start", "--max_run_duration=7d"],
      "alpha compute",
      ["--provisioning-model=flex-start", "--max-run-duration=7d"],
    ),
    (
      ["--tier=spot", "--valid_until_duration=1d12h"],
      "compute",
      ["--spot", "--valid-until-duration=1d12h"],
    ),
  ],
)
def test_what_slices_are_requested_of(cloud, given, group, asked):
  code, output = launch(cloud, "create", *NAME, *SLICE, "--num_slices=2", *given)
  assert code == 0, output
  (request,) = [call.argv for call in cloud.matching("queued-resources create")]
  assert request[: request.index("tpus")] == ["gcloud", *group.split()]
  at = request.index("--node-prefix=run1") + 1
  assert request[at : request.index("--network=default")] == asked


@pytest.mark.parametrize(
  "given, message",
  [
    (["--tier=spot", "--reservation=r1"], "--tier=spot takes no reservation"),
    (
      ["--tier=spot", "--max_run_duration=24h"],
      "leave out --max_run_duration, or give --tier=flex",
    ),
    (["--max_run_duration=24h"], "--tier=on_demand lends TPUs for no time set before"),
    (["--tier=calendar"], "name it, --reservation=NAME"),
    (["--tier=flex_start"], "say how long, --max_run_duration=24h"),
    (["--tier=flex_start", "--max_run_duration=1 day"], "--max_run_duration=1 day is no duration"),
    (["--valid_until_duration=48"], "--valid_until_duration=48 is no duration"),
    (["--reservation=projects/p/r1"], "give NAME, or of another project projects/PROJECT/"),
    (["--tier=reservation"], "on_demand"),
  ],
)
def test_requests_that_nobody_would_grant(cloud, given, message):
  code, output = launch(cloud, "create", *NAME, *SLICE, *given)
  assert code == 1 and message in output.splitlines()[-1] and not cloud.calls


def test_create_of_a_shape_that_is_not_the_default_of_its_type(cloud):
  assert launch(cloud, "create", *NAME, "--topology=v5p:4x8x16")[0] == 0
  assert cloud.calls[1].argv[7:9] == ["--type=v5p", "--topology=4x8x16"]


def test_a_name_that_exists_is_left_alone(cloud):
  cloud.state.write_text("PROVISIONING\n")
  code, output = launch(cloud, "create", *NAME, *SLICE)
  assert code == 1 and [call.argv for call in cloud.calls] == [STATE]
  assert "--name=run1 exists already, its state is PROVISIONING" in output.splitlines()[-1]
  assert "resjax tpu delete --name=run1 --zone=us-west4-a" in output


@pytest.mark.parametrize("failing", ["create run1", "list .*FAILED"])
def test_what_create_made_is_deleted_when_it_fails(cloud, failing):
  if failing.startswith("create"):
    # as when the connection breaks: the request has arrived
    cloud.answer("queued-resources create", run=f"echo ACTIVE > {cloud.state}; exit 1")
  else:
    cloud.answer("queued-resources create", run=f"echo FAILED > {cloud.state}")
  code, output = launch(cloud, "create", *NAME, *SLICE)
  assert code == 1 and not cloud.state.exists()
  assert len(cloud.matching("delete run1 --zone=us-west4-a --force --quiet")) == 1
  last = output.splitlines()[-1]
  assert re.search(r"error: step [23] of 3 .* failed: .*; what was made is undone, nothing", last)
  assert f"go on with: resjax tpu create {' '.join(NAME)}" in last
  assert ("describe" in cloud.calls[-2].argv) == failing.startswith("list")  # says why


def test_a_request_that_never_arrived_leaves_nothing_to_delete(cloud):
  cloud.answer("queued-resources create", 1)
  code, output = launch(cloud, "create", *NAME, *SLICE)
  assert code == 1 and "nothing is left running" in output


def test_what_cannot_be_deleted_is_named(cloud):
  cloud.answer("queued-resources create", run=f"echo FAILED > {cloud.state}")
  cloud.answer("queued-resources delete", 1)
  code, output = launch(cloud, "create", *NAME, *SLICE)
  assert code == 1 and "something may be LEFT RUNNING, look and run: bash -c" in output


def test_ctrl_c_while_waiting_deletes(cloud):
  cloud.answer("queued-resources create", run=f"echo WAITING_FOR_RESOURCES > {cloud.state}")
  process = cloud.start("launch.tpu", "create", *NAME, SLICE[0], "--poll_seconds=0.2")
  while len(cloud.calls) < 4:
    time.sleep(0.02)
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=30)
  assert process.returncode == 130 and not cloud.state.exists()
  assert "was interrupted; what was made is undone" in output.splitlines()[-1]


def test_code_reaches_all_hosts_and_the_command_runs_there(cloud, checkout):
  cloud.state.write_text("ACTIVE\n")
  code, output = launch(cloud, "install", *NAME, "--extra=tpu,wandb", cwd=checkout)
  assert code == 0, output
  installs = [call.argv for call in cloud.matching("^python3 .* --editable")]
  python = ["python3", "-m", "uv", "pip", "install", "--quiet", "--python", "resjax-venv"]
  assert installs == 4 * [[*python, "--editable", "./resjax[tpu,wandb]"]]
  packed = cloud.matching(" scp ")[0].argv[5]
  assert packed.endswith(".bundle") and not pathlib.Path(packed).exists()
  # A second launcher of the same name has a file of its own.
  _, other = launch(cloud, "install", *NAME, "--dry_run", cwd=checkout)
  assert ".bundle HEAD" in other and packed not in other
  for home in cloud.homes:
    assert (home / "resjax" / "launch" / "train.py").exists()
  for home in cloud.homes:  # as an earlier command leaves it
    (home / "resjax-run").mkdir()
    (home / "resjax-run" / "exit_code").write_text("5\n")
  program = (
    "import os; print(os.environ['JAX_COORDINATOR_PORT'], os.environ['A'], os.getcwd(),"
    "os.path.exists('../resjax-run/exit_code'))"
  )
  code, output = launch(cloud, "run", *NAME, "--env=A=b c", "--", "python", "-c", program)
  assert code == 0, output
  for home in cloud.homes:
    while not (home / "resjax-run" / "exit_code").exists():
      time.sleep(0.02)
    assert (home / "resjax-run" / "log").read_text() == f"8476 b c {home}/resjax False\n"
  code, output = launch(cloud, "status", *NAME)
  assert code == 0 and output.count(" exit 0 | 8476 b c ") == 4 and "\nACTIVE\n" in output


@pytest.fixture
def loose(tmp_path):
  """A folder in no checkout, with a wheel and what is not sent."""
  folder = tmp_path / "loose"
  for name in ("setup.py", "own.py", "pkg/runs/kept.py", "runs/big", "data/big", ".venv/big"):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("x = 1\n")
  (folder / "pkg-1.0-py3-none-any.whl").write_text("wheel")
  return folder


def test_a_folder_reaches_all_hosts(cloud, loose):
  cloud.state.write_text("ACTIVE\n")
  code, output = launch(cloud, "install", *NAME, "--folder=.", cwd=loose)
  assert code == 0, output
  for home in cloud.homes:
    sent = home / "resjax"
    found = {str(path.relative_to(sent)) for path in sent.rglob("*") if path.is_file()}
    assert found == {"setup.py", "own.py", "pkg/runs/kept.py", "pkg-1.0-py3-none-any.whl"}
  installs = [call.argv for call in cloud.matching("^python3 .* --editable")]
  assert len(installs) == 4 and installs[0][-1] == "./resjax[tpu]"
  assert "git" not in {call.argv[0] for call in cloud.calls}
  assert not pathlib.Path(cloud.matching(" scp ")[0].argv[5]).exists()


@pytest.mark.parametrize("flags", [(), ("--folder=.",)])
def test_a_wheel_reaches_all_hosts(cloud, loose, flags):
  (loose / "setup.py").unlink()
  cloud.state.write_text("ACTIVE\n")
  wheel = f"--wheel={loose}/pkg-1.0-py3-none-any.whl"
  code, output = launch(cloud, "install", *NAME, wheel, "--extra=tpu,wandb", *flags, cwd=loose)
  assert code == 0, output
  installs = cloud.matching("^python3 -m uv pip install")
  for home, install in zip(cloud.homes, installs, strict=True):
    assert install.argv[-1] == f"pkg[tpu,wandb] @ file://{home}/pkg-1.0-py3-none-any.whl"
    assert (home / "pkg-1.0-py3-none-any.whl").read_text() == "wheel"
    assert (home / "resjax" / "own.py").exists() == bool(flags)


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (("--folder=nowhere",), "--folder=nowhere is no folder"),
    (("--folder=pkg",), "--folder=pkg has no setup.py or pyproject.toml"),
    (("--wheel=setup.py",), "--wheel=setup.py is no wheel"),
    ((), "send a folder or a wheel with --folder=DIR or --wheel=FILE"),
  ],
)
def test_what_cannot_be_sent_is_said_first(cloud, loose, flags, words):
  code, output = launch(cloud, "install", *NAME, *flags, cwd=loose)
  assert code == 1 and output.count("\n") == 1 and words in output and not cloud.calls


@pytest.mark.parametrize("failing", ["git status", "git bundle", "resources scp", "resources ssh"])
@pytest.mark.slow
def test_install_fails_step_by_step(cloud, checkout, failing):
  cloud.state.write_text("ACTIVE\n")
  tools = FakeTools(cloud.folder / "git", "git") if "git" in failing else cloud
  tools.answer(failing, 1)
  if tools is not cloud:
    path = cloud.folder / "bin" / "git"
    path.unlink()
    path.symlink_to(tools.folder / "bin" / "git")
  code, output = launch(cloud, "install", *NAME, cwd=checkout)
  assert code == 1 and re.search(r"error: step \d of 5 .* failed: .*; go on with: ", output)
  assert cloud.state.exists()  # `create` made it, not this command


def test_code_that_is_not_committed_is_refused(cloud, checkout):
  (checkout / "configs" / "mine.py").touch()
  code, output = launch(cloud, "install", *NAME, cwd=checkout)
  (checkout / "configs" / "mine.py").unlink()
  assert code == 1 and "this is not in it: ?? configs/mine.py; commit it" in output


@pytest.mark.parametrize("flags", [(), ("--dry_run",)])
def test_code_that_is_in_no_checkout_is_refused_before_anything_is_printed(cloud, tmp_path, flags):
  (tmp_path / ".git").mkdir()  # of a project that pip cannot install
  for words in (("install", *NAME, *flags), ("resume", *NAME, *SLICE, *flags, "--", "true")):
    code, output = launch(cloud, *words, cwd=tmp_path)
    assert code == 1 and output.count("\n") == 1 and not cloud.calls
    assert output.startswith(
      "error: hosts get the last commit of a git checkout with a setup.py or"
    )
  code, output = launch(cloud, "create", *NAME, *SLICE, "--dry_run", cwd=tmp_path)
  assert code == 0 and output.startswith("# for `resjax tpu install`, later: hosts get the last")


def test_a_start_that_fails_on_one_host_is_stopped_on_all(cloud):
  for home in cloud.homes[:3]:
    (home / "resjax").mkdir()
  (cloud.homes[3] / "resjax-run").touch()  # where a folder must be
  code, output = launch(cloud, "run", *NAME, "--", "sleep", "60")
  assert code == 1 and "what was made is undone, nothing is left running" in output
  for home in cloud.homes[:3]:
    assert (home / "resjax-run" / "exit_code").read_text() == "143\n"


def test_logs(cloud):
  cloud.answer("resources ssh", "")
  launch(cloud, "logs", *NAME, "--worker=all", "--lines=7")
  (call,) = cloud.calls
  assert call.argv[4:-1] == [
    *("ssh", "run1", "--zone=us-west4-a", "--node=0", "--worker=all", "--batch-size=all", "--quiet")
  ]
  assert "tail -n 7 -F" in call.argv[-1]


def test_stop_and_delete(cloud):
  assert launch(cloud, "stop", *NAME)[0] == 0
  cloud.state.write_text("ACTIVE\n")
  assert launch(cloud, "delete", *NAME)[0] == 0 and not cloud.state.exists()
  assert launch(cloud, "delete", *NAME)[0] == 0  # the second time there is nothing to delete


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    ((), "one word says what to do, of: create, install, run, "),
    (("crate", *NAME), "'crate' is not known; choose one of: create"),
    (("create", "--zone=z", *SLICE), "--name= must be up to 40"),
    (("create", "--name=run_1", "--zone=z"), "--name=run_1 must be up to 40"),
    (("create", "--name=run1", *SLICE), "--zone is missing"),
    (("create", *NAME, "--topology=v5litepod-17"), "v5e has v5litepod-1 (1x1), v5litepod-4 (2x2)"),
    (("create", *NAME, "--topology=h100"), "--topology=h100 is not a TPU slice"),
    (("create", *NAME, "--topology=tpu7x-8"), "not a Cloud TPU VM; see resjax gke"),
    (("create", *NAME, *SLICE, "--tier=cheap"), "--tier"),
    (("create", *NAME, *SLICE, "--bogus=1"), "bogus"),
    (("install", *NAME, "--", "true"), "install runs no command"),
    (("run", *NAME), "say what to run, for example: -- resjax train --config"),
    (("run", *NAME, *TRAIN), "config.workdir='runs/tiny' is on the disk of one host"),
    (("run", *NAME, *TRAIN[:-1], "--config=no.py"), "--config=no.py: no such file"),
    (("run", *NAME, "--env=A", "--", "true"), "--env=A is not KEY=VALUE"),
  ],
)
def test_mistakes_are_one_line_and_call_nothing(cloud, arguments, words):
  code, output = launch(cloud, *arguments)
  assert code == 1 and not cloud.calls
  assert output.startswith("error: ") and output.count("\n") == 1 and words in output


def test_a_folder_that_hosts_share_may_hold_the_workdir(cloud):
  shared = ("--shared_folder=/mnt/disk", *TRAIN, "--config.workdir=/mnt/disk/run1")
  assert launch(cloud, "run", *NAME, "--dry_run", *shared)[0] == 0
  beside = (*shared[:-1], "--workdir=/mnt/disk2/run1")
  code, output = launch(cloud, "run", *NAME, "--dry_run", *beside)
  assert code == 1 and "config.workdir='/mnt/disk2/run1' is on the disk of one host" in output


def test_gcloud_is_missing(cloud):
  (cloud.folder / "bin" / "gcloud").unlink()
  code, output = launch(cloud, "status", *NAME)
  assert (code, output.count("\n")) == (1, 1)
  assert "error: gcloud is not on PATH; install the Google Cloud CLI" in output
  assert launch(cloud, "status", *NAME, "--dry_run")[0] == 0
