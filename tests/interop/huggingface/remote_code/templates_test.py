"""What holds of the source texts without torch: they are Python, short, and fit the tensors."""

import copy
import dataclasses
import itertools
import math
import pathlib
import re
import subprocess
import sys
import types

import pytest

from resjax import combinators
from resjax.base.sharding import Layout
from resjax.combinators import registry
from resjax.interop import huggingface
from resjax.interop.huggingface import remote_code
from resjax.interop.huggingface.remote_code.settings import _function as what_the_code_reads
from resjax.interop.huggingface.tensor_checks import expected_shapes
from resjax.models.config import ResidualConfig
from resjax.models.parameters import parameters
from tests.helpers import decoders
from tests.interop.huggingface.remote_code import cases
from tests.interop.huggingface.remote_code.cases import RESIDUALS
from tests.structure import TORCH_SOURCES

ROOT = pathlib.Path(__file__).parents[4]
LONGEST = 450  # lines of a file
ALL = ("views", "values", "norm_gate", "experts", "short_swa", "parallel", "windows", "longrope")
PARTS = ("views",), ("norm_gate",), ("experts",), ("windows",), ("longrope",), ALL


def ruff(*words):
  command = [sys.executable, "-m", "ruff", *words, "--no-cache"]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr


def test_sources_are_python_whose_names_are_imported():
  for path in TORCH_SOURCES.rglob("*.py"):
    compile(path.read_text(encoding="utf-8"), path, "exec")
  ruff("check", str(TORCH_SOURCES))
  ruff("format", "--check", str(TORCH_SOURCES))


def test_what_only_some_decoders_have_stands_between_marks():
  for path in TORCH_SOURCES.rglob("*.py"):
    depth = 0
    for mark in re.findall(r"#: (.*)", path.read_text(encoding="utf-8")):
      depth += mark.startswith("if") - (mark == "end")
      word = re.fullmatch(r"if (?:not )?(\w+)|else|end|options", mark)
      assert depth >= 0 and word and word[1] in (None, *ALL), (path, mark)
    assert depth == 0, path


@pytest.mark.parametrize("parts", [(), ("views",), ALL], ids=str)
def test_nothing_of_the_assembly_is_left_in_the_files(parts):
  for name in remote_code.names():
    for file, text in remote_code.files(name, parts).items():
      compile(text, file, "exec")
      left = re.findall(r"#: .*|\w*NAME_\w*|DIGEST_|from \.\w*[^ \w].*|\n{4}", text)
      assert not left, file
      assert set(re.findall(r"\bResjax[A-Z]\w*", text)) <= {
        remote_code.class_name(name) + kind
        for kind in ("Config", "Model", "PreTrainedModel", "ForCausalLM")
      }


def test_what_is_for_two_parts_needs_both():
  gate = "self.short_gate = NormGate(config)"
  for parts, there in ((("norm_gate",), 0), (("short_swa",), 0), (("short_swa", "norm_gate"), 1)):
    texts = remote_code.files("standard", parts).values()
    assert sum(text.count(gate) for text in texts) == there


@pytest.mark.slow
def test_the_files_are_short_and_pass_ruff(tmp_path):
  for name, parts in itertools.product(remote_code.names(), ((), *PARTS)):
    folder = tmp_path / "-".join([name, *parts])
    folder.mkdir()
    for file, text in remote_code.files(name, parts).items():
      compile(text, file, "exec")
      assert text.count("\n") <= LONGEST, file
      (folder / file).write_text(text)
  rules = ["--config", str(ROOT / "ruff.toml")]
  ruff("check", *rules, "--ignore", "D1", str(tmp_path))
  ruff("format", "--check", *rules, str(tmp_path))


def test_other_code_has_other_classes_of_settings():
  """By which transformers tells apart the models of one process."""
  texts = [remote_code.files("attn_res", parts) for parts in ((), ("views",), ("parallel",))]
  for a, b in itertools.combinations(texts, 2):
    assert a["modeling_resjax_attn_res.py"] != b["modeling_resjax_attn_res.py"]
    assert a["configuration_resjax_attn_res.py"] != b["configuration_resjax_attn_res.py"]


def test_every_combinator_has_a_template():
  assert set(remote_code.names()) == set(combinators.names())
  for name in combinators.names():
    config = decoders.config("llama", name)
    settings = remote_code.settings(config)
    assert remote_code.read_settings(settings, "config.json") == config


def test_a_combinator_without_a_template_is_refused_by_name(monkeypatch):
  monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
  combinators.register("of_a_user")(type("OfAUser", (combinators.Standard,), {}))
  residual = ResidualConfig("of_a_user", {})
  config = dataclasses.replace(decoders.config("llama"), residual=residual)
  with pytest.raises(ValueError, match=r"residual\.name='of_a_user' has no template; there are"):
    huggingface.find_form(config)


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"hidden_size": 8}, r"hidden_size=8 differs from 16, which resjax_config asks for"),
    ({"residual_scope": "layer"}, r"residual_scope='layer' differs from 'sublayer'"),
    ({"model_type": "resjax_highway"}, r"model_type='resjax_highway' differs from 'resjax_gate'"),
    ({"resjax_config": None}, r"resjax_config: "),
    ({"resjax_config": {"vocab_size": "many"}}, r"resjax_config"),
    ({"residual": {"name": "none"}}, r"residual.name='none' has no template"),
    ({"residual": {"name": "gate", "options": {"depth": 1}}}, r"'depth' is not an option of comb"),
    ({"residual": {"name": "gate", "options": {"kappa": "x"}}}, r"kappa"),
    ({"num_layers": 1 << 40}, r"num_layers"),
    ({"rope_frequencies": [[1.0, 0.0101]]}, r"rope_frequencies=\[\[1.0, 0.0101\]\] differs"),
    ({"rope_frequencies": [[1.0]]}, r"rope_frequencies=\[\[1.0\]\] differs"),
    ({"mup": {"base_width": 0, "base_depth": 4}}, r"resjax_config.mup.base_depth is not known to"),
    ({"parallel": True}, r"sites=\['attention', 'mlp'\] differs from \['parallel'\]"),
    ({"windows": [3, 5]}, r"layer_types=\['full_attention', .* differs from \['sliding_attention'"),
  ],
)
def test_settings_that_no_export_writes_are_refused(changes, message):
  values = remote_code.settings(decoders.config("llama", "gate"))
  record = values["resjax_config"]
  for key, value in changes.items():
    (record if key in record else values)[key] = value
  with pytest.raises(ValueError, match=message) as caught:
    remote_code.read_settings(values, "config.json")
  assert "config.json" in str(caught.value) and "\n" not in str(caught.value)


def test_what_another_machine_rounds_otherwise_is_read():
  """Powers in float32 differ by a few ulp between processors."""
  config = decoders.config("llama", "gate")
  values = remote_code.settings(config)
  first, second = values["rope_frequencies"][0]
  values["rope_frequencies"] = [[first, second * (1 + 4e-7)]]
  assert remote_code.read_settings(values, "config.json") == config


def test_the_rows_of_embeddings_are_those_of_the_settings():
  """transformers resizes embeddings, and does not know the record."""
  config = decoders.config("llama", "gate")
  values = remote_code.settings(config) | {"vocab_size": 40}
  wanted = dataclasses.replace(config, vocab_size=40)
  assert remote_code.read_settings(values, "config.json") == wanted
  for rows in (0, "many", None):
    with pytest.raises(ValueError, match=r"config.json: vocab_size: the value is "):
      remote_code.read_settings(values | {"vocab_size": rows}, "config.json")


def test_settings_of_a_newer_version_are_refused():
  values = remote_code.settings(decoders.config("llama", "gate"))
  values["resjax_config"]["attention_sinks"] = 4
  with pytest.raises(
    ValueError, match=r"resjax_config\.attention_sinks is not known to this version"
  ):
    remote_code.read_settings(values, "config.json")


def recorded(value, read):
  """Returns a copy of a dataclass, and of those in it, that adds to `read` what is read of it."""
  cls, same = type(value), copy.copy(value)

  def get(self, name):
    read.add((cls, name))
    return cls.__getattribute__(self, name)

  for field in dataclasses.fields(value):
    if dataclasses.is_dataclass(inner := getattr(value, field.name)):
      object.__setattr__(same, field.name, recorded(inner, read))
  subclass = type(cls.__name__, (cls,), {"__getattribute__": get})
  object.__setattr__(same, "__class__", subclass)
  return same


def fields(value):
  """Yields the fields of a dataclass and of those in it."""
  for field in dataclasses.fields(value):
    yield type(value), field.name
    if dataclasses.is_dataclass(inner := getattr(value, field.name)):
      yield from fields(inner)


def test_the_settings_are_made_of_all_that_decides_what_a_decoder_computes():
  read = set()
  for case in (*cases.DECODERS, *cases.PARTS):
    what_the_code_reads(recorded(case.config, read))
  unread = {f"{cls.__name__}.{name}" for cls, name in fields(cases.PARTS[0].config)} - {
    f"{cls.__name__}.{name}" for cls, name in read
  }
  start = {"init_std", "scaled_output_init"}  # how parameters start, and how steps are computed
  assert unread == {
    *(f"DecoderConfig.{name}" for name in start | {"attention", "depth", "dtype", "remat"}),
    "ShortSWAConfig.zero_init",
    "ValueGateConfig.zero_init",
  }


def test_templates_know_every_option():
  for name in remote_code.names():
    template = remote_code.template(name)
    assert {*template.options, *template.free} == set(combinators.options(name)), name


class Shape(tuple):
  """Stands in for a tensor."""


class Parameter(Shape):
  """Stands in for a parameter."""


class Module:
  """Stands in for torch.nn.Module, whose parameters are shapes."""

  def add_module(self, name, module):
    setattr(self, name, module)


class ParameterDict(Module):
  def __init__(self, values):
    vars(self).update({name: Parameter(value) for name, value in values.items()})


class ParameterList(ParameterDict):
  def __init__(self, values):
    super().__init__({str(number): value for number, value in enumerate(values)})


def shapes(module, prefix):
  """Returns the shapes of the parameters of a module by their names."""
  found = {}
  for name, value in vars(module).items():
    if isinstance(value, Module):
      found |= shapes(value, f"{prefix}{name}.")
    elif isinstance(value, Parameter):
      found[prefix + name] = tuple(value)
  return found


def zeros(*sizes):
  return Shape(sizes[0] if sizes and isinstance(sizes[0], tuple) else sizes)


def declared(config):
  """Returns the shapes of the parameters that a template declares, by the names of tensors."""
  name = config.residual.name
  settings, known = types.SimpleNamespace(**remote_code.settings(config)), {}
  files = remote_code.files(name, remote_code.parts(config))
  defaults = files[f"configuration_resjax_{name}.py"]
  exec(defaults[defaults.index("DEFAULTS") : defaults.index("\nclass ")], known)
  code = files[f"modeling_resjax_{name}.py"]
  last = "class RMSNorm" if "class RMSNorm" in code else "class DecoderLayer"
  code = code[code.index("\n\n\n") : code.index(last)]
  known |= {
    "Any": object, "Tensor": object, "Cache": object, "math": math,
    "nn": types.SimpleNamespace(
      Module=Module, Parameter=Parameter, ParameterDict=ParameterDict, ParameterList=ParameterList
    ),
    "torch": types.SimpleNamespace(zeros=zeros, ones=zeros),
  }  # fmt: skip
  exec(code.replace(f": {remote_code.class_name(name)}Config", ""), known)
  model = Module()
  layers = [Module() for _ in range(config.num_layers)]
  model.layers = layers
  found = shapes(known["Residual"](settings, model), "model.residual.") | shapes(model, "model.")
  for number, layer in enumerate(layers):
    found |= shapes(layer, f"model.layers.{number}.")
  return found


@pytest.mark.parametrize("case", RESIDUALS, ids=str)
@pytest.mark.slow
def test_templates_declare_the_tensors_that_are_written(case):
  parts = remote_code.apart(case.config, parameters(case.config, Layout()))
  of_residual = {
    path: part for path, part in parts.items() if path.startswith(("combinator/", "model."))
  }
  assert declared(case.config) == expected_shapes(
    remote_code.RemoteNames(), case.config, of_residual
  )
