"""Puts the source text of a model together from the template of its combinator and shared parts."""

import dataclasses
import functools
import hashlib
import importlib.resources
import re
from collections.abc import Collection, Mapping
from typing import Any

from resjax import combinators

_TEMPLATES = importlib.resources.files("resjax") / "interop/huggingface/remote_code/templates"
_SUFFIX = ".py.txt"
_LONGEST = 450  # lines of a file; with more, the branches of a layer are in a file of their own
_BRANCHES = '"""The branches of the layers of a decoder whose residual path is NAME_."""'
_SECTIONS = ("views", "values", "norm_gate", "short_swa")  # parts of layers with text of their own
_ONLY_WITH = re.compile(r"^(.*?) *#: (.*)\n", re.MULTILINE)
_HEAD = re.compile(r"# (sections|options|free|rename): (.*)\n")


@dataclasses.dataclass(frozen=True)
class Template:
  """The template of a combinator.

  Attributes:
    code: the source text, with a class `Residual`.
    sections: the names of the shared parts that it needs.
    options: the options that the code knows.
    free: the options that decide nothing of what a trained model computes, or that another setting
      holds (pre_norm).
    renamed: the names of settings that are not residual_OPTION, by option.
  """

  code: str
  sections: tuple[str, ...]
  options: tuple[str, ...]
  free: tuple[str, ...]
  renamed: Mapping[str, str]

  def setting(self, option: str) -> str:
    """Returns the name of the setting of an option in config.json."""
    return self.renamed.get(option, f"residual_{option}")


def names() -> tuple[str, ...]:
  """Returns the names of the combinators that have a template."""
  found = (_TEMPLATES / "residual").iterdir()
  return tuple(sorted(path.name.removesuffix(_SUFFIX) for path in found))


@functools.cache
def template(name: str) -> Template:
  """Returns the template of a combinator that has one; its first lines say what it needs."""
  code = _text(f"residual/{name}")
  head: dict[str, list[str]] = {"sections": [], "options": [], "free": [], "rename": []}
  while match := _HEAD.match(code):
    head[match[1]] += match[2].split()
    code = code[match.end() :]
  sections, options, free, renamed = head.values()
  pairs = dict(zip(renamed[::2], renamed[1::2], strict=True))
  return Template(code, tuple(sections), tuple(options), tuple(free), pairs)


def class_name(name: str) -> str:
  """Returns what the names of a combinator's classes begin with, such as ResjaxAttnRes."""
  return "Resjax" + "".join(word.capitalize() for word in name.split("_"))


def modules(name: str) -> tuple[str, str, str]:
  """Returns the names of the files of configuration, model and branches, without their ending."""
  return f"configuration_resjax_{name}", f"modeling_resjax_{name}", f"branches_resjax_{name}"


def files(name: str, parts: Collection[str] = ()) -> dict[str, str]:
  """Returns the source texts of a model by the names of their files.

  They depend on the combinator, which has a template, and on parts; all else is in the settings.

  Args:
    name: of the combinator.
    parts: what the layers have besides attention and MLP: `views`, `values`, `norm_gate`,
      `short_swa`, `parallel`, several sizes of windows (`windows`), or frequencies by the length of
      a row (`longrope`). Lines of the texts that end in `#: parallel` are for that part alone.
  """
  own, options = template(name), combinators.options(name)
  lines = [f'  "{own.setting(option)}": {_literal(options[option])},\n' for option in own.options]
  configuration = _text("configuration").replace("  OPTIONS_\n", "".join(lines))
  residual = _code("base", *(f"sections/{part}" for part in own.sections)) + "\n\n" + own.code
  branches = _code("branches", *(f"sections/{part}" for part in _SECTIONS if part in parts))
  of_parts = configuration, residual, branches, _code("decoder")
  configuration, residual, branches, decoder = (_chosen(text, parts) for text in of_parts)
  texts = [configuration, _module(residual, branches, decoder)]
  if texts[1].count("\n") > _LONGEST:
    texts[1:] = _module(residual, decoder, beside=branches), _module(branches, title=_BRANCHES)
  digest = hashlib.sha256("".join(texts[1:]).encode()).hexdigest()[:16]
  texts[0] = texts[0].replace("DIGEST_", digest)
  return {
    f"{file}.py": _filled(text, name) for file, text in zip(modules(name), texts, strict=False)
  }


def _code(*names: str) -> str:
  return "\n\n".join(map(_text, names))


def _module(*codes: str, title: str = "", beside: str = "") -> str:
  """Returns codes behind a title and the imports that they need, also from the code beside them."""
  code, head = "\n\n".join(codes), _text("head")
  head = _imports(re.sub('""".*?"""', title, head, flags=re.DOTALL) if title else head, code)
  head = re.sub(r"\n{3,}", "\n\n", head)
  defined = re.findall(r"^(?:class |def |(?=[A-Z]+ = ))(\w+)", beside, re.MULTILINE)
  if used := [name for name in defined if re.search(rf"\b{name}\b", code)]:
    used.sort(key=lambda name: (not name.isupper(), name[0].islower(), name.lower()))
    lines = "".join(f"  {name},\n" for name in used)
    own = f"\nfrom .branches_resjax_NAME_ import (\n{lines})\nfrom ."
    head = head.replace("\nfrom .", own, 1)
  return head + "\n\n" + code


def _chosen(text: str, parts: Collection[str]) -> str:
  """Returns a text without the lines that end in the names of parts that are not all there."""

  def line(match: re.Match) -> str:
    wanted = match[2].removeprefix("not ").split()
    there = set(wanted) <= set(parts)
    return f"{match[1]}\n" if there != match[2].startswith("not ") else ""

  return _ONLY_WITH.sub(line, text)


def _imports(head: str, code: str) -> str:
  """Returns the head without the imports of what the code does not name."""

  def needed(match: re.Match) -> str:
    names = [n for n in match[2].split(", ") if re.search(rf"\b{n}(\b|Config)", code)]
    return f"{match[1]}{', '.join(names)}\n" if names else ""

  return re.sub(r"((?:from \S+ )?import )(.*)\n", needed, head)


def _filled(text: str, name: str) -> str:
  text = text.replace("CLASS_", class_name(name)).replace("MODEL_TYPE_", f"resjax_{name}")
  return text.replace("NAME_", name)


def _literal(value: Any) -> str:
  """Returns a value as Python, in double quotes as formatters want it."""
  if isinstance(value, tuple | list):
    return f"[{', '.join(map(_literal, value))}]"
  return f'"{value}"' if isinstance(value, str) else repr(value)


def _text(name: str) -> str:
  return (_TEMPLATES / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
