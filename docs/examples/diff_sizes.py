"""How much of each example changes between before.py and after.py.

python docs/examples/diff_sizes.py           prints a table
python docs/examples/diff_sizes.py NAME      prints the diff of one example
"""

import difflib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.parent.name for path in FOLDER.glob("*/after.py")))


def diff(name: str) -> list[str]:
  """Returns the unified diff of an example, line by line."""
  before, after = (FOLDER / name / file for file in ("before.py", "after.py"))
  texts = (file.read_text().splitlines() for file in (before, after))
  return list(difflib.unified_diff(*texts, f"{name}/before.py", f"{name}/after.py", "", "", 1, ""))


def sizes(name: str) -> tuple[int, int]:
  """Returns how many lines with text are typed, as added or changed, and how many they replace."""
  lines = [line for line in diff(name)[2:] if line[1:].strip()]
  return sum(line[0] == "+" for line in lines), sum(line[0] == "-" for line in lines)


def main(arguments: list[str]) -> None:
  """Prints the diff of the named examples, or a table of all."""
  unknown = set(arguments) - set(NAMES)
  if unknown:
    raise SystemExit(f"{unknown.pop()!r} is not an example; allowed: {', '.join(NAMES)}")
  for name in arguments:
    print("\n".join(diff(name)))
  if not arguments:
    print(f"{'example':24}typed  replaced")
    for name in NAMES:
      typed, replaced = sizes(name)
      print(f"{name:24}{typed:5}{replaced:10}")


if __name__ == "__main__":
  main(sys.argv[1:])
