"""What bash and zsh complete of a command line that is not finished."""

import shlex
import shutil
import subprocess

import pytest

from resjax.__main__ import COMMANDS
from resjax.cli.shipped import completion

NAMES = [name for group in COMMANDS.values() for name in group]
# Lines, and all that their last word may become.
ASKED = {
  "resjax tra": {"train", "train_together"},
  "resjax train --pro": {"--profile_steps="},
  "resjax analyze --chec": {"--checkpoint=", "--check_flags"},
  "resjax analyze --fs": {"--fsdp="},
  "resjax train --config=ti": {"tiny"},
  "resjax sweep --config=ablations/com": {"ablations/compare"},
  "resjax bench gpu": {"gpu_day"},
  "resjax bench step --mic": {"--microbatches="},
  "resjax completion ": {"bash", "zsh"},
  "resjax tpu --dr": {"--dry_run"},
  "resjax tpu st": {"status", "stop"},
  "resjax slurm l": {"logs"},
  "resjax report --co": set(),
}


def test_bash_completes_commands_flags_and_configs():
  ask = "".join(
    f"COMPREPLY=(); COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; _resjax; "
    'echo "${COMPREPLY[@]}"\n'
    for line in ASKED
  )
  program = completion.script("bash", NAMES) + ask
  done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
  found = [set(line.split()) for line in done.stdout.splitlines()]
  assert dict(zip(ASKED, found, strict=True)) == ASKED


def test_other_shells_are_refused():
  with pytest.raises(ValueError, match="of: bash, zsh; got fish"):
    completion.script("fish", NAMES)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_too():
  fakes = """
    compdef() { :; }; _files() { :; }; compset() { PREFIX=${PREFIX#--config=}; }
    compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -rl -- "$@"; }
    ask() {  # what is printed has another prefix where compset cut it
      words=("$@"); CURRENT=$#; PREFIX=${words[-1]}
      for one in $(_resjax); do [[ $one == ${PREFIX#--config=}* ]] && print -rn -- "$one "; done
      print
    }
  """
  ask = "\n".join("ask " + shlex.join(line.split(" ")) for line in ASKED)
  program = f"{fakes}\n{completion.script('zsh', NAMES)}\n{ask}"
  done = subprocess.run(["zsh", "-fc", program], capture_output=True, text=True, check=True)
  found = [set(line.split()) for line in done.stdout.splitlines()]
  assert dict(zip(ASKED, found, strict=True)) == ASKED
