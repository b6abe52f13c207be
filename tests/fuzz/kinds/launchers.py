"""Words for the launchers, whose scripts run them: with quotes, line breaks and secrets."""

import shlex
import subprocess
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz.cases import Case, Place
from tests.fuzz.forks import Done

_SECRET = "s3cret-5f1d"
_WORDS = (
  "", " ", "a b", "'", '"', "$(touch {place}/victim/new)", "`touch {place}/victim/new`", "a\nb",
  "END_OF_TASK", "END_OF_COMMAND", "END_OF_TEXT", "a\nEND_OF_TASK\ntouch {place}/victim/new\nb",
  "a\nEND_OF_COMMAND\ntouch {place}/victim/new\nb", "a\nEND_OF_TEXT\ntouch {place}/victim/new\nb",
  "; touch {place}/victim/new", "&& true", "| cat", "> {place}/victim/new", "#SBATCH --x", "é𝕏",
  "\\", "\n", "$HOME", "*", "~", "--", "-x", "x" * 3000, "\x1b[31m", "{{}}", "%x", "!", "\r\n",
  "\t", "\udcff", "x\n#SBATCH --wrap=bad", "a,b", "../victim", "/", "-1", "0", "nan", "inf",
  str(2**70), "1e400",
)  # fmt: skip
_USUAL = {
  "slurm": ("--name=run1",),
  "tpu": ("--name=run1", "--zone=us-west4-a", "--topology=v5litepod-16"),
  "gke": ("--name=run1", "--image=image", "--topology=v5litepod-16"),
  "local": ("--port=9999",),
}
_FLAGS = {
  "slurm": ["name", "nodes", "gpus_per_node", "processes", "cpus_per_node", "hours",
                   "partition", "account", "log_folder", "container", "env",
                   "grace_seconds", "option", "lines"],
  "tpu": ["name", "zone", "project", "topology", "num_slices", "tier", "runtime_version",
                 "service_account", "network", "subnetwork", "python", "extra", "env",
                 "shared_folder", "node", "worker", "lines", "stop_seconds", "poll_seconds"],
  "gke": ["name", "namespace", "image", "topology", "num_slices", "gpu", "num_nodes",
                 "gpus_per_node", "queue", "service_account", "claim", "env", "max_restarts",
                 "grace_seconds", "lines", "slice", "host", "xpk_cluster", "zone", "project"],
  "local": ["num_processes", "port", "cpu_devices", "grace_seconds"],
}  # fmt: skip
_ACTIONS = {
  "slurm": ["run"] * 4 + ["status", "delete", "logs", "x", ""],
  "tpu": ["run"] * 4 + ["create", "install", "logs", "status", "resume", "stop", "delete"],
  "gke": ["run"] * 4 + ["logs", "status", "delete", "x"],
  "local": [""],
}


@st.composite
def arguments(draw: st.DrawFn, original: Path) -> Case:
  """Draws words for a launcher under --dry_run; what it prints must be a script of those words."""
  launcher = draw(st.sampled_from(sorted(_USUAL)))
  action = draw(st.sampled_from(_ACTIONS[launcher]))
  name = draw(st.sampled_from(_FLAGS[launcher]))
  word = draw(st.sampled_from(_WORDS))
  value = f"A={word}" if name == "env" and draw(st.booleans()) else word
  command = ["python", "-c", "pass", *draw(st.lists(st.sampled_from(_WORDS), max_size=3))]
  given = [action] if action else []
  given += [*_USUAL[launcher], "--dry_run", f"--{name}={value}"]
  secret = launcher != "local" and draw(st.booleans())
  if secret:
    given += [
      f"--env={draw(st.sampled_from(['WANDB_API_KEY', 'MY_TOKEN', 'DB_PASSWORD']))}={_SECRET}"
    ]
  if action in ("run", "resume") or launcher == "local":
    given += ["--", *command]
  return Case(
    kind="launcher",
    command=launcher,
    arguments=tuple(given),
    what=f"{launcher} {action} --{name}={value[:40]!r} {[word[:30] for word in command[3:]]}",
    right=_right(launcher, command),
    writes=("out",),
  )


_KNOWN = (
  ("slurm", "--account=x\n#SBATCH --wrap=bad", ()),
  ("slurm", "--partition=x\n#SBATCH --wrap=bad", ()),
  ("slurm", "--option=--x\n#SBATCH --wrap=bad", ()),
  ("slurm", "--log_folder=x\n#SBATCH --wrap=bad", ()),
  ("slurm", "--account=", ("a\nEND_OF_TASK\ntouch {place}/victim/new\nb",)),
  ("slurm", "--account=", ("a\nEND_OF_TEXT\ntouch {place}/victim/new\nb",)),
  ("slurm", f"--env=MY_API_KEY={_SECRET}", ()),
  ("slurm", "--env=A=$(touch {place}/victim/new)", ("$(touch {place}/victim/new)",)),
  ("tpu", "--project=", ("a\nEND_OF_COMMAND\ntouch {place}/victim/new\nb",)),
  ("tpu", "--project=", ("a\nEND_OF_TEXT\ntouch {place}/victim/new\nb",)),
  ("tpu", f"--env=WANDB_API_KEY={_SECRET}", ()),
  ("tpu", "--project=$(touch {place}/victim/new)", ("`touch {place}/victim/new`",)),
  ("gke", "--queue=", ("a\nEND_OF_TEXT\ntouch {place}/victim/new\nb",)),
  ("gke", f"--env=DB_PASSWORD={_SECRET}", ()),
  ("gke", "--image=x\nEND_OF_TEXT\ntouch {place}/victim/new", ()),
  ("local", "--port=9998", ("a\nb", "$(touch {place}/victim/new)", "'", "")),
)


def known(original: Path) -> list[Case]:
  """Returns the words that are known to leave a script of a launcher, or to tell a secret."""
  found = []
  for launcher, flag, words in _KNOWN:
    command = ["python", "-c", "pass", *words]
    action = () if launcher == "local" else ("run",)
    given = (*action, *_USUAL[launcher], "--dry_run", flag, "--", *command)
    found.append(
      Case(
        kind="injection",
        command=launcher,
        arguments=given,
        what=f"{launcher} run {flag!r} {list(words)}",
        right=_right(launcher, command),
      )
    )
  return found


def _right(launcher: str, command: list[str]):
  """Returns the check of the printed text: it is a script, runs no word, and tells no secret."""

  def check(place: Place, done: Done) -> str:
    if _SECRET.encode() in done.out + done.err:
      return "a secret was printed"
    parsed = subprocess.run(["bash", "-n"], input=done.out, capture_output=True, check=False)
    if parsed.returncode:
      return f"bash does not parse it: {parsed.stderr.decode(errors='replace')[:200]}"
    header = done.out.partition(b"#!/bin/bash\n")[2].partition(b"\nset ")[0]
    if b"\n#SBATCH --wrap" in header:
      return "a value became an option of sbatch"
    if launcher == "local":
      words = [word.replace("{place}", str(place.folder)) for word in command]
      lines = shlex.split(done.out.decode(errors="surrogateescape"))
      if lines[-len(words) :] != words:
        return f"other words than given: {lines[-len(words) :]}"
    return _run(place, done.out)

  return check


# What stands in for the programs of a cluster: a job of SLURM runs at once, and scripts for the
# hosts of TPUs are parsed; nothing else happens.
_NOTHING = "#!/bin/sh\n[ -t 0 ] || cat > /dev/null\nexit 0\n"
_PROGRAMS = {
  "gcloud": """#!/bin/bash
for word; do
  if [[ $word == --command=* ]]; then bash -n <<< "${word#--command=}" || touch broken; fi
done
""",
  "sbatch": "#!/bin/sh\ncat > job.sh\nbash -n job.sh || touch broken\nexec timeout 5 bash job.sh\n",
  "srun": '#!/bin/sh\nwhile [ "$1" != bash ]; do shift; done\nexec "$@"\n',
}


def _run(place: Place, script: bytes) -> str:
  """Runs the script with commands that do nothing, and returns what it changed."""
  programs = place.path("programs")
  programs.mkdir()
  names = "gcloud kubectl xpk sbatch srun squeue scancel tail env git"
  for name in names.split():
    (programs / name).write_text(_PROGRAMS.get(name, _NOTHING))
    (programs / name).chmod(0o755)
  place.path("script.sh").write_bytes(script)
  environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(place.path("text"))}
  environment |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node"}
  try:
    subprocess.run(
      ["bash", place.path("script.sh")],  # not from the standard input, which programs read
      stdin=subprocess.DEVNULL,
      cwd=place.path("text"),
      env=environment,
      capture_output=True,
      timeout=20,
      check=False,
    )
  except subprocess.TimeoutExpired:
    return "the script hangs"
  if place.path("victim/new").exists():
    return "a word was run"
  return "bash does not parse a script inside it" if place.path("text/broken").exists() else ""
