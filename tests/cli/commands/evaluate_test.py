"""The evaluate command, as its users run it: on runs, on Hugging Face folders, on bad input."""

import json
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from tests.helpers import pretrained, trained
from tests.helpers.runs import ends, free_port, start, write_text
from tests.helpers.trained import STEPS


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  root = write_text(tmp_path_factory.mktemp("evaluate"))
  pretrained.folder(root)  # llama
  rows = [{"text": "the depth of a layer is width"}, {"text": "query the gate"}]
  tasks = root / "tasks"
  tasks.mkdir()
  (tasks / "lambada_openai.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  return root


@pytest.fixture(scope="module")
def checkpoint(root):
  """The folder of a run with a checkpoint after every step."""
  settings = trained.settings(root, root / "run", "attn_res")
  settings.checkpoint.update(every=1, keep_last=STEPS)
  trained.run(settings)
  return root / "run"


def command(*flags):
  return [sys.executable, "-m", "resjax", "evaluate", *map(str, flags)]


def run(*flags):
  process = start(command(*flags), COLUMNS=80)
  output, _ = process.communicate(timeout=300)
  return process.returncode, output


def results(folder):
  return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def scored(root, checkpoint):
  """Two models, one text and one task."""
  flags = [f"--checkpoint={checkpoint}", f"--hf={root / 'llama'}", f"--out={root / 'out'}"]
  flags += [f"--text=own={root / 'text'}", "--tasks=lambada_openai", "--limit=3"]
  code, output = run(*flags, f"--tasks_folder={root / 'tasks'}", "--max_length=32")
  assert code == 0, output
  return output


@pytest.mark.slow
def test_what_is_written(root, scored):
  found, out = results(root / "out"), root / "out"
  assert scored.splitlines()[-2:] == [str(out / n) for n in ("results.json", "samples.parquet")]
  assert max(map(len, scored.splitlines()[:-2])) <= 80
  models = [f"run, step {STEPS}", "llama"]
  assert [one["model"] for one in found["models"]] == models
  texts = {(one["model"], one["text"]): one for one in found["texts"]}
  assert list(texts) == [(m, t) for m in models for t in ("own", "lambada_openai")]
  assert {one["reference"] for one in found["differences"]} == {models[0]}
  own = texts[models[0], "own"]
  assert own["convention"] == "documents" and own["counts"]["units"] == 3
  assert own["data_digest"] == texts["llama", "own"]["data_digest"]
  assert own["counts"]["bytes"] == texts["llama", "own"]["counts"]["bytes"]
  assert found["settings"]["flags"]["limit"] == 3 and found["settings"]["versions"]["jax"]
  samples = pq.read_table(out / "samples.parquet").to_pylist()
  assert len(samples) == 2 * (3 + 2)
  for one in ("bits_per_byte", "differences from run", "all but the last word", "± "):
    assert one in scored


@pytest.mark.slow
def test_all_checkpoints_of_a_run(root, checkpoint):
  texts = [f"--text=own={root / 'text' / '0.txt'}", f"--text=more={root / 'text' / '1.txt'}"]
  out = root / "all"
  code, output = run(
    f"--checkpoint={checkpoint}", *texts, "--every_checkpoint", "--stride=0,16", f"--out={out}"
  )
  assert code == 0 and output.splitlines()[-1] == str(out / "checkpoints.png"), output
  assert (out / "checkpoints.png").read_bytes().startswith(b"\x89PNG")
  found = results(out)
  assert len(found["models"]) == STEPS and len(found["macro_averages"]) == 2 * STEPS
  assert [one["text"] for one in found["texts"][:4]] == [
    "own", "more", "own, stride 16", "more, stride 16"
  ]  # fmt: skip
  value = {
    one["model"]: one["metrics"]["bits_per_byte"]["value"] for one in found["macro_averages"]
  }
  assert value[f"run, step {STEPS}"] < value["run, step 1"]


@pytest.mark.release
def test_two_processes_find_what_one_finds(root):
  flags = [f"--hf={root / 'llama'}", f"--text=own={root / 'text'}", "--limit=3", "--fsdp=2"]
  place = {"JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}", "JAX_NUM_PROCESSES": 2}
  outs = [root / name for name in ("first", "second")]
  started = [
    start(command(*flags, f"--out={out}"), **place, JAX_PROCESS_ID=index)
    for index, out in enumerate(outs)
  ]
  found = ends(started)
  assert [code for code, _ in found] == [0, 0], found
  assert "bits_per_byte" in found[0][1] and "own" not in found[1][1] and not outs[1].exists()
  code, output = run(*flags[:3], f"--out={root / 'alone'}")
  assert code == 0, output
  together, alone = (results(root / name)["texts"][0] for name in ("first", "alone"))
  assert together["nats"] == pytest.approx(alone["nats"], rel=1e-5)
  assert together["counts"] == alone["counts"]


MISTAKES = [
  (["--text=a={root}/text"], ["no model", "--checkpoint", "--hf"]),
  (["--hf={root}/llama"], ["nothing to score", "--text=NAME=SOURCE"]),
  (["--text=a"], ["--text=a", "NAME=[CONVENTION:]SOURCE[@SPLIT]"]),
  (["--text=lambada={root}/text"], ["two LAMBADAs", "lambada_openai"]),
  (["--tasks=core", "--tasks_folder={root}/text"], ["eval_bundle", "core.yaml", "{root}/text"]),
  (["--tasks=core"], ["eval_bundle", "--tasks_folder"]),
  (["--tasks=lambada"], ["two LAMBADAs", "lambada_standard"]),
  (["--text=a={root}/nowhere"], ["--text=a", "nowhere"]),
  (["--text=a={root}/text@dev"], ["--text=a", "no split 'dev'"]),
  (["--text=a={root}/text@hash:2-1"], ["0 <= A < B <= 1"]),
  (["--text=a=nanogpt:{root}/text"], ["one file of tokens"]),
  (["--hf={root}/llama", "--text=a={root}/text", "--stride=4096"], ["--stride=4096", "1..96"]),
  (["--hf={root}/llama", "--text=a={root}/text", "--stride=x,1"], ["--stride=x,1", "whole"]),
  (["--hf={root}/llama", "--text=a={root}/text", "--out=/dev/null/x"], ["/dev/null/x", "--out"]),
  (["--hf={root}/text", "--text=a={root}/text"], ["text", "config.json"]),
  (["--hf={root}/llama", "--tasks=wikitext", "--tasks_folder={root}/nowhere"], ["no folder"]),
  (["--hf={root}/llama", "--every_checkpoint", "--checkpoint={root}/text",
    "--text=a={root}/text"], ["no checkpoints", "--every_checkpoint"]),
]  # fmt: skip
# All in one process: each would spend seconds on its start. The harness is hidden.
ONE_AFTER_ANOTHER = """
import json, sys
sys.modules["lm_eval"] = None
from absl import flags
from resjax.cli.commands import evaluate
for arguments in json.loads(sys.argv[1]):
  flags.FLAGS.unparse_flags()
  for name in flags.FLAGS:
    flags.FLAGS[name].unparse()
  flags.FLAGS(["evaluate", *arguments])
  try:
    evaluate.main()
    print("=", json.dumps(None))
  except (ValueError, OSError) as error:
    print("=", json.dumps(str(error)))
print("=", json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


@pytest.fixture(scope="module")
def refusals(root):
  """What is said to each of MISTAKES, and then the modules that are loaded."""
  cases = [[flag.format(root=root) for flag in flags] for flags, _ in MISTAKES]
  for number, flags in enumerate(cases):
    if not any(flag.startswith("--out") for flag in flags):
      flags.append(f"--out={root / 'refused' / str(number)}")
  text = f"--text=a={root}/text"
  cases.append([f"--hf={root}/llama", text, "--limit=1", f"--out={root / 'good'}"])
  process = start([sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps(cases)])
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0, output
  return [json.loads(line[1:]) for line in output.splitlines() if line.startswith("=")]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_one_line_and_leave_nothing(root, refusals, number):
  said = refusals[number]
  assert said is not None and "\n" not in said
  assert all(word.format(root=root) in said for word in MISTAKES[number][1]), said
  assert not list((root / "refused" / str(number)).rglob("*.json"))


def test_no_other_framework_is_loaded(root, refusals):
  said, modules = refusals[-2:]
  assert said is None and (root / "good" / "results.json").exists()
  forbidden = {"torch", "transformers", "tensorflow", "tensorflow_datasets", "matplotlib"}
  assert not forbidden & set(modules)


def test_a_task_of_the_harness_names_the_extra(root):
  program = "import sys; sys.modules['lm_eval'] = None; "
  program += "from resjax.cli.commands import evaluate; evaluate.run()"
  flags = [f"--hf={root / 'llama'}", "--tasks=hellaswag", f"--out={root / 'no'}"]
  process = start([sys.executable, "-c", program, *flags])
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 1 and output.count("\n") == 1
  assert "hellaswag" in output and "pip install 'resjax[eval]'" in output


@pytest.mark.slow
def test_ctrl_c_leaves_no_half_file(root, tmp_path):
  flags = [f"--hf={root / 'llama'}", f"--text=a={root / 'text'}", f"--out={tmp_path / 'out'}"]
  process: subprocess.Popen = start(command(*flags, "--stride=1"))
  deadline = time.monotonic() + 300
  while not (tmp_path / "out").exists():
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.02)
  time.sleep(1)
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 130 and "Traceback" not in output, output
  assert not list((tmp_path / "out").iterdir())
