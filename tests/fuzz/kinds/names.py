"""Words that people choose: prompts, and names of folders."""

import os
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz import originals
from tests.fuzz.cases import Case, Place
from tests.fuzz.forks import ROOT, Done

_PROMPTS = (
  "", " ", "\n", "depth width", "é𝕏\u202e", "\x1b[31m", "<|endoftext|>", "<s>", "[/x]", "--seed=1",
  "x" * 100, "depth " * 3000, "\udcff\udcfe", "a\udc80b", "\ufffe", "{}", "%s", "'\"", "-", "\t",
)  # fmt: skip


@st.composite
def prompt(draw: st.DrawFn, original: Path) -> Case:
  """Draws prompts of resjax generate; the text that is printed begins with them."""
  usual = st.text(st.characters(exclude_characters="\0"), max_size=30)
  text = draw(st.one_of(st.sampled_from(_PROMPTS), usual))
  more = draw(st.sampled_from([(), ("--prompt=b",), ("--stop=",), ("--temperature=0",)]))

  def right(place: Place, done: Done) -> str:
    del place
    given = os.fsencode(text) if _can_be_given(text) else b""
    return "" if done.out.startswith(given) else "the text does not begin with the prompt"

  return Case(
    kind="prompt",
    command="generate",
    arguments=(*originals.GENERATE, f"--prompt={text}", *more),
    what=f"prompt {text[:60]!r} {' '.join(more)}",
    names=("prompt", "stop", text[:20]),
    right=right,
  )


def _can_be_given(text: str) -> bool:
  try:
    os.fsencode(text)
  except UnicodeEncodeError:
    return False
  return True


_NAMES = (
  "a b", "[/x]", "[red]x", "$a_{$", "$x$ ^_{", "é", "𝕏", "a'b\"c", "a\nb", "\x1b[31m", "-x", "%s",
  "{}", "\\frac", "x" * 200, "a:b", "a=b", "a,b", "#", "~", "run.json", "..x", "\udcff", "*",
)  # fmt: skip


@st.composite
def name(draw: st.DrawFn, original: Path) -> Case:
  """Draws the name of a folder that a command reads or writes."""
  given = draw(st.sampled_from(_NAMES))
  command = draw(
    st.sampled_from(["train", "generate", "export", "analyze", "collect", "out", "hf"])
  )
  arguments: tuple[str, ...]
  source = ""
  match command:
    case "train":
      command = "train"
      arguments = originals.training(workdir=given, train__steps=2)
    case "generate":
      source, command, arguments = (
        "run",
        "generate",
        (f"--checkpoint={given}", "--num_tokens=2"),
      )
    case "export":
      source, command = "run", "export"
      arguments = (f"--checkpoint={given}", "--out=out")
    case "analyze":
      source, command = "run", "analyze"
      arguments = (f"--checkpoint={given}", *originals.ANALYZE[1:])
    case "collect":
      command = "sweep"
      config = f"--config={ROOT}/configs/ablations/compare.py"
      arguments = (config, f"--config.workdir={given}", "--collect")
    case "out":
      command, arguments = "analyze", (*originals.ANALYZE, f"--out={given}")
    case _:
      source, command = "hf", "analyze"
      arguments = (f"--hf={given}", *originals.ANALYZE[1:])

  def damage(place: Place) -> None:
    if source:
      place.path(given).parent.mkdir(exist_ok=True)
      place.path(source).rename(place.path(given))

  return Case(
    kind="name",
    command=command,
    arguments=arguments,
    what=f"{command} of a folder named {given[:40]!r}",
    damage=damage,
    writes=("out", "data", given.split("/")[0]),
  )
