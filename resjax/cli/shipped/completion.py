"""Shell scripts that complete commands, their flags and the names of configs.

The flags are read from the text of the commands, because importing them all takes a minute.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from resjax.cli import shipped

_LAUNCH = shipped.root() / "launch"
_COMMANDS = Path(__file__).parents[1] / "commands"
SHELLS = ("bash", "zsh")

_TABLE = """\
_resjax_commands="{commands}"
_resjax_configs="{configs}"
_resjax_flags() {{
  case "$1" in
{cases}
  esac
}}
_resjax_words() {{
  case "$1" in
{words}
  esac
}}
"""

_BASH = """\
_resjax() {
  local line="${COMP_LINE:0:COMP_POINT}" cur found
  local -a words
  read -r -a words <<< "$line"
  cur="${line##* }"
  local command="${words[1]}"
  [[ $command == bench ]] && command="bench_${words[2]}"
  if [[ ${words[*]:1} == "$cur" ]]; then
    found="$_resjax_commands"
  elif [[ $cur == --config=* ]]; then
    COMPREPLY=($(compgen -W "$_resjax_configs" -f -- "${cur#*=}"))
    return
  elif [[ $cur == --* ]]; then
    found="$(_resjax_flags "$command")"
  elif [[ ${words[*]:2} == "$cur" ]]; then
    found="$(_resjax_words "${words[1]}")"
  fi
  COMPREPLY=($(compgen -W "$found" -- "$cur"))
  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
  return 0
}
complete -o default -F _resjax resjax
"""

_ZSH = """\
_resjax() {
  local command="${words[2]}"
  [[ $command == bench ]] && command="bench_${words[3]}"
  if (( CURRENT == 2 )); then
    compadd -- ${=_resjax_commands}
  elif [[ $PREFIX == --config=* ]]; then
    compset -P '--config='
    compadd -- ${=_resjax_configs}
    _files
  elif [[ $PREFIX == --* ]]; then
    local -a found=(${=$(_resjax_flags "$command")})
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
  elif (( CURRENT == 3 )); then
    compadd -- ${=$(_resjax_words "${words[2]}")} || _files
  else
    _files
  fi
}
compdef _resjax resjax
"""


def script(shell: str, commands: Iterable[str]) -> str:
  """Returns what a shell reads, by `source <(resjax completion SHELL)`, to complete `resjax`.

  Args:
    shell: `bash` or `zsh`.
    commands: the names of all commands.

  Raises:
    ValueError: the shell is another one.
  """
  if shell not in SHELLS:
    raise ValueError(f"one word names the shell, of: {', '.join(SHELLS)}; got {shell or 'none'}")
  names = sorted(commands)
  benchmarks = sorted(_benchmarks(_LAUNCH / "bench"))
  files = {name: _file(name) for name in names if name not in ("bench", "completion")}
  files |= {f"bench_{name}": _file(f"bench/{name}") for name in benchmarks}
  words = {"bench": benchmarks, "completion": SHELLS}
  words |= {name: found for name, path in files.items() if (found := actions(path))}
  table = _TABLE.format(
    commands=" ".join(names),
    configs=" ".join(shipped.config_names()),
    cases=_cases({name: flags(path) for name, path in files.items()}),
    words=_cases(words),
  )
  return table + {"bash": _BASH, "zsh": _ZSH}[shell]


def _cases(words: Mapping[str, Iterable[str]]) -> str:
  return "\n".join(f'    {name}) echo "{" ".join(found)}" ;;' for name, found in words.items())


def actions(path: Path) -> list[str]:
  """Returns the words that say what a launcher does, such as `create`: keys of its `actions`."""
  for node in ast.walk(ast.parse(path.read_text())):
    match node:
      case ast.AnnAssign(target=ast.Name("actions"), value=ast.Dict(keys)):
        return [ast.literal_eval(key) for key in keys if key]
  return []


def flags(path: Path) -> list[str]:
  """Returns the flags of a command, such as `--out=` and, for one without a value, `--search`."""
  found = {"--help"}
  for file in _with_imports(path, set()):
    for node in ast.walk(ast.parse(file.read_text())):
      if isinstance(node, ast.Call):
        found.update(_defined(node))
  return sorted(found)


def _benchmarks(folder: Path) -> Iterator[str]:
  for path in folder.glob("*.py"):
    if path.name != "__main__.py" and "command.run(" in path.read_text():
      yield path.stem
  yield from (path.parent.name for path in folder.glob("*/__main__.py"))


def _file(name: str) -> Path:
  places = (_LAUNCH / name / "__main__.py", _LAUNCH / f"{name}.py", _COMMANDS / f"{name}.py")
  return next(filter(Path.exists, reversed(places)))


def _with_imports(path: Path, seen: set[Path]) -> set[Path]:
  """Returns the files of a command and of all commands that it imports, which define flags too."""
  if path in seen or not path.exists():
    return seen
  seen.add(path)
  for node in ast.walk(ast.parse(path.read_text())):
    module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    if isinstance(node, ast.ImportFrom) and f"{module}.".startswith(("launch.", "resjax.cli.")):
      root = _LAUNCH.parent if module.startswith("launch") else _COMMANDS.parents[2]
      place = root.joinpath(*module.split("."))
      for file in (place.with_suffix(".py"), *(place / f"{name.name}.py" for name in node.names)):
        _with_imports(file, seen)
  return seen


def _defined(node: ast.Call) -> Iterator[str]:
  """Yields the flags that a call defines, by absl or by argparse."""
  name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
  first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
  if name == "define_config":
    yield from ("--config=", "--workdir=")
  elif isinstance(first, str) and name.startswith("DEFINE_") and name != "DEFINE_config_file":
    yield f"--{first}" if name == "DEFINE_bool" else f"--{first}="
  elif isinstance(first, str) and name == "add_argument" and first.startswith("--"):
    yield f"--{first.removeprefix('--')}="
