"""Puts the source text of a model together from the modules of `torch_source`.

They are modules for torch and transformers that import each other, and that resjax never imports:
it reads their text. `residual/NAME.py` is the template of a combinator. What only some decoders
have stands between the lines `#: if PART`, `#: else` and `#: end`.
"""

import ast
import collections
import dataclasses
import functools
import hashlib
import importlib.resources
import itertools
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from resjax import combinators

_SOURCES = importlib.resources.files("resjax") / "interop/huggingface/torch_source"
_LONGEST = 450  # lines of a file; with more, the branches of a layer are in a file of their own
_HEAD = re.compile(r"# (options|free|rename): (.*)\n")


@dataclasses.dataclass(frozen=True)
class Template:
  """The header of the template of a combinator.

  Attributes:
    options: the options that the code knows.
    free: the options that decide nothing of what a trained model computes, or that another setting
      holds (pre_norm).
    renamed: the names of settings that are not residual_OPTION, by option.
  """

  options: tuple[str, ...]
  free: tuple[str, ...]
  renamed: Mapping[str, str]

  def setting(self, option: str) -> str:
    """Returns the name of the setting of an option in config.json."""
    return self.renamed.get(option, f"residual_{option}")


@dataclasses.dataclass(frozen=True)
class _Module:
  """A module of `torch_source`.

  Attributes:
    title: its docstring.
    imports: the module, which is a path where it is one of these, and the name; "": the module.
    code: all that follows the imports.
  """

  title: str
  imports: tuple[tuple[str, str], ...]
  code: str


def names() -> tuple[str, ...]:
  """Returns the names of the combinators that have a template."""
  found = (path.name for path in (_SOURCES / "residual").iterdir())
  return tuple(sorted(name.removesuffix(".py") for name in found if name.endswith(".py")))


@functools.cache
def template(name: str) -> Template:
  """Returns the template of a combinator that has one."""
  code = _text(f"residual/{name}")
  head: dict[str, list[str]] = {"options": [], "free": [], "rename": []}
  while match := _HEAD.match(code):
    head[match[1]] += match[2].split()
    code = code[match.end() :]
  options, free, renamed = head.values()
  pairs = dict(zip(renamed[::2], renamed[1::2], strict=True))
  return Template(tuple(options), tuple(free), pairs)


def class_name(name: str) -> str:
  """Returns the prefix of the names of a combinator's classes, such as ResjaxAttnRes."""
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
      `short_swa`, `parallel`, `experts` in place of MLPs, several sizes of windows (`windows`), or
      frequencies by the length of a row (`longrope`).
  """
  own, options = template(name), combinators.options(name)
  lines = [f'  "{own.setting(option)}": {_literal(options[option])},\n' for option in own.options]
  configuration = _chosen(_text("configuration").replace("  #: options\n", "".join(lines)), parts)
  residual = _behind_its_bases(f"residual/{name}")
  texts = [configuration, _file([*residual, "branches", "decoder"], parts)]
  if texts[1].count("\n") > _LONGEST:
    texts[1:] = _file([*residual, "decoder"], parts), _file(["branches"], parts)
  digest = hashlib.sha256("".join(texts[1:]).encode()).hexdigest()[:16]
  texts[0] = texts[0].replace("DIGEST_", digest)
  return {
    f"{file}.py": _filled(text, name) for file, text in zip(modules(name), texts, strict=False)
  }


@functools.cache
def _module(path: str) -> _Module:
  text = _text(path)
  tree, imports, end = ast.parse(text), [], 0
  for node in tree.body:
    if isinstance(node, ast.Import):
      imports += [(alias.name, "") for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      module = str(node.module)
      if node.level:  # beside this one, or in the folder above
        module = "." + "/".join([*path.split("/")[: -node.level], *module.split(".")])
      imports += [(module, alias.name) for alias in node.names]
    else:
      continue
    end = node.end_lineno or end
  code = "".join(text.splitlines(keepends=True)[end:])
  return _Module(ast.get_docstring(tree, clean=False) or "", tuple(imports), code)


def _behind_its_bases(path: str) -> list[str]:
  """Returns the path of a module, behind the paths of all shared modules that it depends on."""
  shared = [module[1:] for module, _ in _module(path).imports if module.startswith(".shared/")]
  paths = [base for module in shared for base in _behind_its_bases(module)]
  return [*dict.fromkeys(paths), path]


def _file(paths: Sequence[str], parts: Collection[str]) -> str:
  """Returns modules as one, with the docstring of the last and the imports that they need."""
  code = "\n\n".join(_chosen(_module(path).code, parts) for path in paths)
  return f'"""{_module(paths[-1]).title}"""\n\n{_imports(paths, code)}\n\n{code}'


def _imports(paths: Sequence[str], code: str) -> str:
  """Returns the imports of modules that become one, as far as its code has their names."""
  found: dict[tuple[int, bool, str], set[str]] = collections.defaultdict(set)
  for module, name in itertools.chain.from_iterable(_module(path).imports for path in paths):
    own, here = module.startswith("."), module[1:] in paths or "/" in module
    if (own and here) or not re.search(rf"\b{name or module}\b", code):
      continue
    kind = 2 if own else module.partition(".")[0] not in sys.stdlib_module_names
    found[kind, bool(name), f"{module}_resjax_NAME_" if own else module].add(name)
  kinds = itertools.groupby(sorted(found.items()), lambda item: item[0][0])
  return "\n".join("".join(_import(*key[1:], names) for key, names in items) for _, items in kinds)


def _import(named: bool, module: str, names: Collection[str]) -> str:
  """Returns the import of a module, or of names from it, in the order of linters."""
  if not named:
    return f"import {module}\n"
  order = sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name.lower()))
  if len(order) > 4:
    return f"from {module} import (\n" + "".join(f"  {name},\n" for name in order) + ")\n"
  return f"from {module} import {', '.join(order)}\n"


def _chosen(text: str, parts: Collection[str]) -> str:
  """Returns a text without the lines that are for other parts, and without their marks."""
  kept, there = [], [True]
  for line in text.splitlines():
    match line.split():
      case ["#:", "if", *words]:
        there.append(there[-1] and (words[-1] in parts) != (words[0] == "not"))
      case ["#:", "else"]:
        there[-1] = there[-2] and not there[-1]
      case ["#:", "end"]:
        there.pop()
      case _ if there[-1]:
        kept.append(line)
  return re.sub(r"\n{4,}", "\n\n\n", "\n".join(kept)).strip("\n") + "\n"


def _filled(text: str, name: str) -> str:
  """Returns a text with the names of the classes and modules of a combinator."""
  return re.sub(r"\bResjax(?=[A-Z])", class_name(name), text.replace("NAME_", name))


def _literal(value: Any) -> str:
  """Returns a value as Python, in double quotes as formatters want it."""
  if isinstance(value, tuple | list):
    return f"[{', '.join(map(_literal, value))}]"
  return f'"{value}"' if isinstance(value, str) else repr(value)


def _text(path: str) -> str:
  return (_SOURCES / f"{path}.py").read_text(encoding="utf-8")
