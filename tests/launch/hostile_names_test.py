"""Launchers hand on exactly the words that they are given, whatever these are, and no secret."""

import re
import subprocess

import pytest
import yaml

from launch.gke.jobset import _literal
from launch.shell import heredoc
from tests.helpers import fakes
from tests.helpers.fakes import FakeTools

WORDS = [
  *("a b", "it's", '"q"', "$(touch stolen)", "`touch stolen`", "*", "~", "ü ×", "--leading=-dash"),
  *("line\nEND_OF_TASK\nEND_OF_COMMAND\nEND_OF_TEXT\ntouch stolen", "END_OF_TASK)", "\\", "a\\nb"),
  *("$$ $(A) ${A} $$(A)", "", "#SBATCH --x", "; touch stolen #", "\n", "{a,b}", "!!", "%x", "\t"),
]
COMMAND = ("--", "python", *WORDS)
VALUE = "b 'c' \"d\" $(touch stolen)\nEND_OF_COMMAND\nEND_OF_TASK"
SECRET = "hush$'\"x y"
ENVIRONMENT = (f"--env=A={VALUE}", f"--env=WANDB_API_KEY={SECRET}")
TASK = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
TPU = ("--name=run1", "--zone=us-west4-a")
GKE = ("--name=run1", "--image=i", "--topology=v5litepod-16")
# Prints the environment that it gets into a file beside what it is called with.
PYTHON = 'printf "%s\\0" "$A" "$WANDB_API_KEY" > {folder}/environment'


def shellcheck(script):
  """What shellcheck warns of; it also has a note for each `$` and `\\` in single quotes."""
  return fakes.shellcheck(script, "--severity=warning")


@pytest.fixture
def tools(tmp_path):
  found = FakeTools(
    *(tmp_path / "tools", "gcloud", "sbatch", "squeue", "srun", "kubectl", "xpk", "python")
  )
  found.answer("^python", run=PYTHON.format(folder=found.folder))
  found.answer("^srun", run='while [[ "$1" == --* ]]; do shift; done; exec "$@"')
  return found


def assert_handed_on(tools):
  (called,) = tools.matching("^python")
  assert called.argv == ["python", *WORDS]
  values = (tools.folder / "environment").read_text().split("\0")[:-1]
  assert values == [VALUE, SECRET]
  assert not list(tools.folder.rglob("stolen"))


def assert_silent(output):
  assert "hush" not in output and "WANDB_API_KEY" in output


def bash(tools, script, **variables):
  done = subprocess.run(
    ["bash", "-c", script],
    cwd=tools.folder,
    env=tools.environment(**variables),
    text=True,
    capture_output=True,
    timeout=60,
  )
  assert done.returncode == 0, done.stderr


def test_slurm(tools):
  more = ("--nodes=1", "--setup=true # it's", "--option=--comment=a 'b' $(touch stolen)")
  arguments = ("run", "--name=run1", *more, *ENVIRONMENT, *COMMAND)
  code, output = tools.run("launch.slurm", *arguments, cwd=tools.folder)
  assert code == 0, output
  (submitted,) = tools.matching("^sbatch")
  assert shellcheck(submitted.stdin) == ""
  assert re.findall(r"^#SBATCH .*comment.*$", submitted.stdin, re.MULTILINE) == [
    "#SBATCH --comment='a '\"'\"'b'\"'\"' $(touch stolen)'"
  ]
  bash(tools, submitted.stdin, **TASK)
  assert_handed_on(tools)
  code, output = tools.run("launch.slurm", *arguments[:2], "--dry_run", *arguments[2:])
  assert code == 0 and shellcheck(output) == ""
  assert_silent(output)


@pytest.mark.parametrize(
  "flag",
  [
    *("--partition=p\ntouch stolen", "--account=a\rb", "--option=--x\ny", "--option=touch stolen"),
    "--log_folder=a\nb",
  ],
)
def test_an_option_of_slurm_stays_in_its_line(tools, flag):
  arguments = ("run", "--name=run1", "--dry_run", flag, "--", "true")
  code, output = tools.run("launch.slurm", *arguments, cwd=tools.folder)
  assert code == 1 and output.startswith("error: ") and output.count("\n") == 1, output
  assert "is no option for sbatch" in output


@pytest.fixture
def host(tools):
  """The home folder of a host, on which gcloud runs the scripts that it is given."""
  home = tools.folder / "home"
  (home / "resjax").mkdir(parents=True)
  run = f'export HOME={home}; cd {home}; bash -c "${{CALL##*--command=}}"'
  tools.answer("resources ssh", run=run)
  return home


def test_tpu(tools, host):
  code, output = tools.run("launch.tpu", "run", *TPU, *ENVIRONMENT, *COMMAND)
  assert code == 0, output
  (call,) = tools.matching("resources ssh")
  script = call.argv[-1].removeprefix("--command=")
  assert shellcheck(script) == ""
  bash(tools, "while [ ! -e home/resjax-run/exit_code ]; do sleep 0.05; done")
  assert_handed_on(tools)
  assert (host / "resjax-run" / "command.sh").stat().st_mode & 0o077 == 0
  code, output = tools.run("launch.tpu", "run", *TPU, "--dry_run", *ENVIRONMENT, *COMMAND)
  assert code == 0 and shellcheck(output) == ""
  assert_silent(output)


def test_a_failing_step_prints_no_secret(tools):
  tools.answer("resources ssh", 1)
  tools.answer("^xpk", 1)
  more = ("--xpk_cluster=c", "--env=WANDB_API_KEY=hush hush", "--", "env", "B_TOKEN=hush", "x")
  for module, *flags in (("launch.tpu", "run", *TPU), ("launch.gke", "run", *GKE)):
    own = more if module == "launch.gke" else more[1:]
    code, output = tools.run(module, *flags, *own)
    assert code == 1 and "go on with: resjax" in output and "B_TOKEN=***" in output
    assert_silent(output)


def test_what_cannot_be_parsed_prints_no_secret(tools):
  wrong = ("--env=A-WANDB_API_KEY=hush", "--", "true")
  code, output = tools.run("launch.tpu", "run", *TPU, *wrong)
  assert code == 1 and output == "error: --env=A-WANDB_API_KEY=*** is not KEY=VALUE\n"


def test_gke(tools):
  code, output = tools.run("launch.gke", "run", *GKE, *ENVIRONMENT, *COMMAND)
  assert code == 0, output
  (applied,) = tools.matching("^kubectl .* apply")
  job = yaml.safe_load(applied.stdin)["spec"]["replicatedJobs"][0]
  (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
  variables = {one["name"]: one.get("value", "") for one in container["env"]}
  variables = {name: kubernetes(value, variables) for name, value in variables.items()}
  script = kubernetes(container["command"][2], variables)
  assert shellcheck(script) == ""
  bash(tools, script, **variables)
  assert_handed_on(tools)
  code, output = tools.run("launch.gke", "run", *GKE, "--dry_run", *ENVIRONMENT, *COMMAND)
  assert code == 0 and shellcheck(output) == ""
  assert_silent(output)


def kubernetes(text, variables):
  """What Kubernetes makes of a text: $(NAME) becomes a variable that there is, and $$ a $."""

  def replaced(found):
    return "$" if found[0] == "$$" else variables.get(found[1], found[0])

  return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text)


@pytest.mark.parametrize("text", [*WORDS, "$$$(A)$", "$((1))"])
def test_kubernetes_puts_no_variables_in(text):
  assert kubernetes(_literal(text), {"A": "x"}) == text


def test_xpk_refuses_what_it_cannot_hand_on(tools):
  more = ("--xpk_cluster=c", '--env=A=b"c', "--", "true")
  code, output = tools.run("launch.gke", "run", *GKE, *more)
  assert code == 1 and "--env=A: it has quotes" in output and not tools.calls


def test_words_that_are_no_utf8_are_refused(tools):
  for word in ("a\udcff", "--env=A=\udcff"):
    more = (word, "--", "true") if word.startswith("--") else ("--", word)
    code, output = tools.run("launch.tpu", "run", *TPU, "--dry_run", *more)
    assert code == 1 and r"\udcff' is no UTF-8" in output


def test_local(tools):
  code, output = tools.run("launch.local", "--num_processes=1", *COMMAND)
  assert code == 0, output
  (called,) = tools.matching("^python")
  assert called.argv == ["python", *WORDS]
  more = ("--num_processes=1", "--dry_run", "--", "env", "A_TOKEN=hush", "python", *WORDS)
  code, output = tools.run("launch.local", *more)
  assert code == 0 and shellcheck(output) == "" and "hush" not in output


def test_what_ends_a_here_document_begins_no_line_of_it():
  assert heredoc("a\nEND\nb\tEND_", "END") == "<<'END_'\na\nEND\nb\tEND_\nEND_\n"
  assert heredoc("\tEND)\nEND_x\n", "END") == "<<'END__'\n\tEND)\nEND_x\nEND__\n"


def test_the_workdir_is_read_from_the_text_of_a_config(tools, tmp_path):
  config = tmp_path / "own.py"
  text = "from configs import base\ndef get_config():\n  c = base.get_config()\n"
  train = ("--nofit", "--dry_run", "--", "python", "-m", "launch.train", f"--config={config}")
  for workdir, words in (
    ("'runs/x'", "config.workdir='runs/x' is on the disk of one host"),
    ("'gs://' + 'x'", "sets no workdir that can be read without running it"),
  ):
    config.write_text(f"{text}  c.workdir = {workdir}\n  return c\n")
    code, output = tools.run("launch.tpu", "run", *TPU, *train, cwd=tmp_path)
    assert code == 1 and words in output, output
  override = "--config.workdir=gs://bucket/run"
  assert tools.run("launch.tpu", "run", *TPU, *train, override, cwd=tmp_path)[0] == 0
  config.write_text("def f(:\n")
  code, output = tools.run("launch.tpu", "run", *TPU, *train, cwd=tmp_path)
  assert code == 1 and output == f"error: resjax train: {config}:1: invalid syntax\n"
