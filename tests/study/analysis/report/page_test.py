"""The page is complete, needs no other file, escapes names, and shows all results."""

import base64
import dataclasses
import html.parser
import io
import re

import numpy as np
import pytest
from rich.console import Console

from resjax.study.analysis import depth_positions, plots
from resjax.study.analysis.report import factor_table, results
from resjax.study.analysis.report.page import page as render
from resjax.study.analysis.report.page import write
from tests.helpers import reports

VOID = {"meta", "link", "img", "br"}


class Parsed(html.parser.HTMLParser):
  """Collects tags with their attributes, and texts with their tags; checks that tags match."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.texts, self._open = [], [], []
    self.feed(text)
    assert self._open == []

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag not in VOID:
      self._open.append(tag)

  def handle_endtag(self, tag):
    assert self._open.pop() == tag

  def handle_data(self, data):
    self.texts.append((self._open[-1] if self._open else None, data))

  def all(self, tag):
    return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(folder):
  return Parsed((folder / "report.html").read_text("utf-8"))


@pytest.mark.slow
def test_needs_nothing_else(page):
  assert not page.all("script") and not page.all("iframe") and not page.all("object")
  for tag, attributes in page.tags:
    assert not [name for name in attributes if name.startswith("on")], tag
    assert attributes.get("src", "data:").startswith("data:image/svg+xml;base64,") or tag != "img"
    assert re.match(r"#|data:|plots$|results\.json$", attributes.get("href", "#")), attributes
  style = "".join(text for tag, text in page.texts if tag == "style")
  assert "url(" not in style and "@import" not in style
  for image in page.all("img"):
    svg = base64.b64decode(image["src"].partition(",")[2]).decode()
    targets = re.findall(r'(?:href|src)="([^"]*)"', svg) + re.findall(r"url\(([^)]*)\)", svg)
    assert targets and all(target.startswith(("#", "data:")) for target in targets)


@pytest.mark.slow
def test_figures_on_the_page_have_their_titles_as_text(page):
  titles = {text for tag, text in page.texts if tag == "strong"}
  assert {"Rank under the lens.", "Depth attention.", "Loss when a layer is cut."} <= titles


@pytest.mark.slow
def test_every_figure_is_there_and_says_what_it_is_of(page, folder, given):
  names = [attributes["id"] for attributes in page.all("figure")]
  assert len(set(names)) == len(names) == len(page.all("img"))
  files = {path.name for path in folder.glob("plots/*")}
  # The page has the heat map as a table.
  assert files == {f"{name}.png" for name in [*names, "1_heat"]}
  for prefix in ("1_", "1_read_", "2_"):
    wanted = ("rank", "probability", "top1", "nats", "cosine", "projection", "energy", "norm")
    assert {f"{prefix}{key}" for key in (*wanted, "controls_shift", "controls_rank")} <= {*names}
  assert {"1_depth_attention", "1_cuts_1", "1_cuts_1_emergence", "overlay_rank_next_token"} <= {
    *names
  }
  assert not {"2_depth_attention", "2_cuts_1", "2_read_rank"} & {*names}
  for name, image in zip(names, page.all("img"), strict=True):
    models = reports.NAMES if name.startswith("overlay") else [reports.NAMES[int(name[0]) - 1]]
    assert all(model in image["alt"] for model in models)
    count = "n = 500 tokens" if "cuts" in name else "n = 16,320 tokens"
    assert given[0].alignment.corpus in image["alt"] and count in image["alt"]


@pytest.mark.slow
def test_shifts_are_listed(page):
  cells = [text for tag, text in page.texts if tag in ("td", "a")]
  assert set(reports.NAMES) <= {*cells}
  assert "no shift" in cells  # This is the shuffled control.
  assert any(re.fullmatch(r"after layer 1 \w+ \(95%: .*\)", cell) for cell in cells)


@pytest.mark.slow
def test_the_answer_comes_first_with_its_size(page, given):
  """For each model a sentence: where it shifts, and how much better than chance it ends."""
  texts = [text for _, text in page.texts]
  first = "".join(texts[texts.index(reports.NAMES[0]) :][:40])
  sizes = [f"{depth_positions.effect(one.alignment):.3g} times better" for one in given]
  assert re.search(
    rf": the input token is lost after layer \d.*{sizes[0]} than a random one", first
  ), first
  groups = given[1].alignment.readings["closed"]
  ranks = (np.exp(groups[name].metrics["next_log_rank"][-1]) for name in ("shuffled", "all"))
  assert depth_positions.effect(given[1].alignment) == pytest.approx(next(ranks) / next(ranks))


def test_a_model_that_knows_nothing_is_no_better_than_chance(given):
  alignment = given[0].alignment
  groups = dict(alignment.readings["closed"])
  groups["shuffled"] = groups["all"]
  nothing = dataclasses.replace(alignment, readings={"closed": groups})
  words = "ranks 1 times better than a random one, which is no better than chance"
  assert words in depth_positions.answer(nothing)


@pytest.mark.slow
def test_factors_are_a_table_of_writes(page):
  cells = [text for tag, text in page.texts if tag in ("th", "td")]
  row = cells.index("layer 1 mlp")
  assert cells[row : row + 5] == ["layer 1 mlp", "0.875", "0.250", "1.000", "0.562"]
  assert cells[cells.index("layer 1 attention") + 3] == "0.875"
  assert any("The last layer has 100% of all (even: 50%)." in text for _, text in page.texts)


def test_factors_of_several_models_have_a_verdict():
  console = Console(file=io.StringIO(), width=80)
  (factors,) = (one.factors for one in reports.results() if one.factors)
  factor_table.show([("<a>", factors), ("[b]", factors)], console)
  said = console.file.getvalue()
  assert "<a>" in said and "[b]" in said and "0.000 0.562" in said and "0.525" in said
  want = "attenuation at the last layer: undecided (shares 100%, 100%, mean 95% 100% to 100%; "
  assert said.splitlines()[-1] == want + "even: 50%; the largest in 2 of 2)"
  factor_table.show([], console)
  assert console.file.getvalue() == said


@pytest.mark.slow
def test_tokens_and_names_are_text(page):
  cells = [text for tag, text in page.texts if tag == "bdi"]
  assert set(cells) == set(reports.TOKENS)
  heads = [text for tag, text in page.texts if tag == "h2"]
  assert heads == ["What a shift is", "All models", *reports.NAMES]
  assert not page.all("b")
  rows = [text for tag, text in page.texts if tag == "bdi"][:: 1 + 5]  # L = 2 has five positions.
  assert tuple(rows) == reports.TOKENS


@pytest.mark.slow
def test_cells_show_probability_and_kind(page, given):
  cells = [a for a in page.all("td") if "style" in a]
  wanted = [cell for row in given[0].heat.cells for cell in row]
  assert len(cells) == len(wanted)
  shades = {}
  for attributes, cell in zip(cells, wanted, strict=True):
    assert attributes["title"] == f"{cell.text}: {cell.probability:.3f}"
    kinds = attributes["class"].split()
    assert ("next" in kinds) == cell.is_next
    assert ("input" in kinds) == (cell.is_input and not cell.is_next)
    shades[cell.probability] = attributes["style"]
  assert shades[0.0] == "background:#ffffff" and len(set(shades.values())) == 11


@pytest.mark.slow
def test_json_and_back(given, folder):
  back = results.from_json((folder / "results.json").read_text("utf-8"))
  for one, two in zip(given, back, strict=True):
    np.testing.assert_equal(dataclasses.asdict(two.alignment), dataclasses.asdict(one.alignment))
    assert two.heat == one.heat
    again, factors = (given and dataclasses.asdict(given) for given in (two.factors, one.factors))
    np.testing.assert_equal(again, factors)
    for cut, again in zip(one.sensitivities, two.sensitivities, strict=True):
      np.testing.assert_equal(dataclasses.asdict(again), dataclasses.asdict(cut))


def test_one_model_has_no_overlays_and_the_same_page_twice(given):
  names = []
  first = render([given[1]], lambda drawn: names.append(drawn.name))
  assert first == render([given[1]], lambda drawn: None)
  assert len(names) == 10 and all(name.startswith("1_") for name in names)


def test_an_interrupt_leaves_the_page_that_was_there(given, tmp_path, monkeypatch):
  def interrupt(figure, path, **options):
    raise KeyboardInterrupt

  monkeypatch.setattr(plots, "save", interrupt)
  (tmp_path / "report.html").write_text("old")
  for folder in (tmp_path, tmp_path / "new"):
    with pytest.raises(KeyboardInterrupt):
      write(given, folder)
  assert (tmp_path / "report.html").read_text() == "old"
  assert not (tmp_path / "new" / "report.html").exists()
