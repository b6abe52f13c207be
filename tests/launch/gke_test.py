"""GKE: the manifest against its schema, the exact kubectl and xpk calls, and failures."""

import copy
import json
import pathlib
import signal
import subprocess
import time

import jsonschema
import pytest
import yaml

from tests.helpers.fakes import FakeTools, shellcheck

SCHEMA = json.loads((pathlib.Path(__file__).parent / "jobset_schema.json").read_text())
NAME = "--name=run1"
TPUS = ("--image=repo/image:1", "--topology=v5litepod-16")
GPUS = ("--image=repo/image:1", "--gpu=nvidia-h100-80gb", "--num_nodes=3")
ROWS = "--config.train.batch_size=96"  # divide over all devices here
TRAIN = ("--", "python", "-m", "launch.train", "--config=configs/tiny.py", ROWS)
WORKDIR = "--config.workdir=gs://bucket/run1"


@pytest.fixture
def cluster(tmp_path):
  """kubectl that keeps one JobSet, in the file `state`."""
  tools = FakeTools(tmp_path / "tools", "kubectl", "xpk", "python")
  tools.state = tmp_path / "state"
  tools.answer("kubectl .* apply", run=f"touch {tools.state}")
  tools.answer("kubectl .* get jobset", run=f"[ ! -e {tools.state} ] || echo jobset/run1")
  tools.answer("delete", run=f"rm -f {tools.state}")
  return tools


def launch(cluster, *arguments):
  return cluster.run("launch.gke", *arguments)


def manifest(cluster, *arguments):
  code, output = launch(cluster, "run", NAME, *arguments)
  assert code == 0, output
  (apply,) = cluster.matching("apply")
  found = yaml.safe_load(apply.stdin)
  jsonschema.validate(found, SCHEMA)
  return found


def job_of(found):
  (job,) = found["spec"]["replicatedJobs"]
  return job


def pod_of(found):
  return job_of(found)["template"]["spec"]["template"]["spec"]


def test_tpu_slices(cluster):
  more = ("--num_slices=2", "--spot", "--queue=q", "--service_account=sa", "--claim=disk=/mnt/disk")
  shared = ("--config.workdir=/mnt/disk/run1",)
  found = manifest(cluster, *TPUS, *more, "--env=A=b", *TRAIN, *shared)
  exclusive = "alpha.jobset.sigs.k8s.io/exclusive-topology"
  assert found["metadata"] == {
    "name": "run1",
    "namespace": "default",
    "labels": {"kueue.x-k8s.io/queue-name": "q"},
    "annotations": {exclusive: "cloud.google.com/gke-nodepool"},
  }
  job = job_of(found)
  assert job["replicas"] == 2
  assert job["template"]["spec"]["parallelism"] == job["template"]["spec"]["completions"] == 4
  pod = pod_of(found)
  assert pod["nodeSelector"] == {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "4x4",
    "cloud.google.com/gke-spot": "true",
  }
  (container,) = pod["containers"]
  assert container["resources"] == {"limits": {"google.com/tpu": 4}}
  assert container["volumeMounts"] == [{"name": "disk", "mountPath": "/mnt/disk"}]
  environment = {entry["name"]: entry["value"] for entry in container["env"]}
  assert environment == {"PYTHONUNBUFFERED": "1", "JAX_COORDINATOR_PORT": "8476", "A": "b"}


def test_nodes_of_a_reservation(cluster):
  label = "cloud.google.com/reservation"
  own = {f"{label}-name": "r1", f"{label}-affinity": "specific"}
  selector = pod_of(manifest(cluster, *TPUS, "--reservation=r1", *TRAIN, WORKDIR))["nodeSelector"]
  assert {key: value for key, value in selector.items() if key.startswith(label)} == own
  cluster.state.unlink()
  shared = "--reservation=projects/p/reservations/r1"
  code, output = launch(cluster, "run", NAME, *TPUS, shared, *TRAIN, WORKDIR)
  selector = pod_of(yaml.safe_load(cluster.matching("apply")[1].stdin))["nodeSelector"]
  assert code == 0 and own | {f"{label}-project": "p"} == {
    key: value for key, value in selector.items() if key.startswith(label)
  }
  for flags, message in (
    ([shared, "--spot"], "Spot VMs come from no reservation"),
    (["--reservation=R1"], "--reservation=R1 is no name of a reservation"),
  ):
    code, output = launch(cluster, "run", "--name=run2", *TPUS, *flags, *TRAIN, WORKDIR)
    assert code == 1 and message in output.splitlines()[-1]


def test_gpu_nodes_find_each_other(cluster):
  found = manifest(cluster, *GPUS, *TRAIN, WORKDIR)
  job = job_of(found)
  assert (job["replicas"], job["template"]["spec"]["completions"]) == (1, 3)
  (container,) = pod_of(found)["containers"]
  assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
  environment = {entry["name"]: entry.get("value", entry) for entry in container["env"]}
  first = f"{found['metadata']['name']}-{job['name']}-0-0"  # JobSet, job, its index, pod
  assert environment["JAX_COORDINATOR_ADDRESS"] == f"{first}.run1:8476"
  assert environment["JAX_NUM_PROCESSES"] == "3"
  field = environment["JAX_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
  assert field == "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def test_the_schema_refuses_what_kubernetes_would(cluster):
  found = manifest(cluster, *TPUS, *TRAIN, WORKDIR)
  wrong = []
  for change in (
    lambda one: one.update(apiVersion="jobset.x-k8s.io/v1"),
    lambda one: one["spec"].update(replicatedJob=[]),
    lambda one: job_of(one)["template"]["spec"].update(backofLimit=0),
    lambda one: pod_of(one).update(restartPolicy="OnFailure"),
    lambda one: pod_of(one)["containers"][0]["env"][0].update(value=1),
    lambda one: one["spec"]["failurePolicy"]["rules"][0].update(action="Restart"),
  ):
    wrong.append(copy.deepcopy(found))
    change(wrong[-1])
  for one in wrong:
    with pytest.raises(jsonschema.ValidationError):
      jsonschema.validate(one, SCHEMA)


def test_the_pod_runs_the_command_and_is_not_done_when_it_is_stopped(cluster):
  found = manifest(cluster, *TPUS, "--", "python", "a b", "it's")
  (container,) = pod_of(found)["containers"]
  assert shellcheck(container["command"][2]) == ""
  pod = subprocess.run(container["command"], env=cluster.environment())
  assert pod.returncode == 0 and cluster.calls[-1].argv == ["python", "a b", "it's"]
  wait = "trap 'kill %1; exit 0' TERM; sleep 60 & wait"
  cluster.answer("^python", run=f"exec bash -c {wait!r}")
  process = subprocess.Popen(container["command"], env=cluster.environment())
  while len(cluster.matching("^python")) < 2:
    time.sleep(0.02)
  time.sleep(0.3)
  process.send_signal(signal.SIGTERM)
  assert process.wait(20) == 143


def test_run_is_two_calls(cluster):
  assert launch(cluster, "run", NAME, "--namespace=n", *TPUS, *TRAIN, WORKDIR)[0] == 0
  kubectl = ["kubectl", "--namespace=n"]
  look, apply = cluster.calls
  assert look.argv == [*kubectl, "get", "jobset", "run1", "--ignore-not-found", "--output=name"]
  assert apply.argv == [*kubectl, "apply", "--filename=-"]


def test_a_name_that_exists_is_left_alone(cluster):
  cluster.state.touch()
  code, output = launch(cluster, "run", NAME, *TPUS, *TRAIN, WORKDIR)
  assert code == 1 and cluster.state.exists() and len(cluster.calls) == 1
  assert "--name=run1 exists already" in output and "resjax gke delete" in output


@pytest.mark.parametrize("failing", ["get jobset", "apply"])
def test_a_failure_leaves_nothing(cluster, failing):
  cluster.answer(failing, run=f"touch {cluster.state}; exit 1" if failing == "apply" else "exit 1")
  code, output = launch(cluster, "run", NAME, *TPUS, *TRAIN, WORKDIR)
  last = output.splitlines()[-1]
  assert code == 1 and not cluster.state.exists()
  assert "of 2" in last and "; go on with: resjax gke run --name=run1" in last
  assert len(cluster.matching("delete jobset run1")) == (failing == "apply")


def test_other_verbs(cluster):
  pods = "jobset.sigs.k8s.io/jobset-name=run1"
  for arguments in (["logs", NAME], ["logs", NAME, "--slice=1", "--host=all"], ["status", NAME]):
    assert launch(cluster, *arguments)[0] == 0
  assert launch(cluster, "delete", NAME)[0] == 0
  kubectl = ["kubectl", "--namespace=default"]
  tail = ["--follow", "--prefix", "--tail=100", "--max-log-requests=1000"]
  one = f"{pods},jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
  assert [call.argv for call in cluster.calls] == [
    [*kubectl, "logs", f"--selector={one}", *tail],
    [*kubectl, "logs", f"--selector={pods},jobset.sigs.k8s.io/job-index=1", *tail],
    [*kubectl, "get", "jobset", "run1"],
    [*kubectl, "get", "pods", f"--selector={pods}", "--output=wide"],
    [*kubectl, "delete", "jobset", "run1", "--ignore-not-found"],
  ]


def test_xpk(cluster):
  where = ("--xpk_cluster=c", "--zone=z", "--project=p")
  more = ("--num_slices=2", "--env=A=b c", "--spot", "--", "python", "a b", "it's")
  code, output = launch(cluster, "run", NAME, *TPUS, *where, *more)
  assert code == 0, output
  (call,) = cluster.calls
  (command,) = [word for word in call.argv if word.startswith("--command=")]
  assert [word for word in call.argv if word != command] == [
    *("xpk", "workload", "create", "--workload=run1", "--cluster=c", "--zone=z", "--project=p"),
    *("--tpu-type=v5litepod-16", "--num-slices=2", "--docker-image=repo/image:1", "--spot"),
    *("--env=PYTHONUNBUFFERED=1", "--env=JAX_COORDINATOR_PORT=8476", "--env=A=b c"),
    *("--max-restarts=10", "--termination-grace-period-seconds=120"),
  ]
  script = command.removeprefix("--command=")
  assert "\n" not in script  # xpk pastes it into one line of a manifest
  assert shellcheck(script) == ""
  subprocess.run(["bash", "-c", f"({script})"], env=cluster.environment(), check=True)
  assert cluster.calls[-1].argv == ["python", "a b", "it's"]
  launch(cluster, "delete", NAME, *where)
  delete = ["xpk", "workload", "delete", "--workload=run1", *call.argv[4:7], "--force"]
  assert cluster.calls[-1].argv == delete


def test_xpk_fails(cluster):
  cluster.answer("workload create", 1)
  code, output = launch(cluster, "run", NAME, *TPUS, "--xpk_cluster=c", *TRAIN, WORKDIR)
  assert code == 1 and "nothing is left running" in output
  assert len(cluster.matching("xpk workload delete")) == 1


def test_dry_run_is_a_shell_script_and_calls_nothing(cluster):
  for arguments in ((*TPUS, "--num_slices=2"), GPUS):
    code, output = launch(cluster, "run", NAME, *arguments, "--dry_run", *TRAIN, WORKDIR)
    assert code == 0 and not cluster.calls
    assert shellcheck(output) == ""


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (("run", "--name=Run", *TPUS, *TRAIN, WORKDIR), "--name=Run must be"),
    (("run", NAME, *TPUS), "say what to run"),
    (("run", NAME, *TPUS, *TRAIN), "config.workdir='runs/tiny' is on the disk of one host"),
    (("run", NAME, *TRAIN, WORKDIR), "--image is missing"),
    (("run", NAME, "--image=i", *TRAIN, WORKDIR), "set one of --topology"),
    (("run", NAME, *TPUS, "--gpu=x", *TRAIN, WORKDIR), "set one of --topology"),
    (("run", NAME, "--image=i", "--topology=v5e:3x3", *TRAIN, WORKDIR), "v5e has v5litepod-1"),
    (("run", NAME, *TPUS, "--claim=disk", *TRAIN, WORKDIR), "--claim=disk is not CLAIM=/PATH"),
    (("run", NAME, *GPUS, "--xpk_cluster=c", *TRAIN, WORKDIR), "leave out --xpk_cluster"),
    (("run", NAME, *TPUS, "--xpk_cluster=c", "--queue=q", *TRAIN, WORKDIR), "leave out --queue"),
    (
      ("run", NAME, *TPUS, "--xpk_cluster=c", "--reservation=r", *TRAIN, WORKDIR),
      "leave out --res",
    ),
    (("delete", NAME, *TRAIN), "delete runs no command"),
  ],
)
def test_mistakes_are_one_line_and_call_nothing(cluster, arguments, words):
  code, output = launch(cluster, *arguments)
  assert code == 1 and not cluster.calls
  assert output.startswith("error: ") and output.count("\n") == 1 and words in output


def test_kubectl_is_missing(cluster):
  (cluster.folder / "bin" / "kubectl").unlink()
  code, output = launch(cluster, "status", NAME)
  assert code == 1 and output.startswith("error: kubectl is not on PATH; install it with `gcloud ")
