"""One report for the tests of its files and of its look in a browser."""

import pytest

from resjax.study.analysis.report import page
from tests.helpers import reports


@pytest.fixture(scope="session")
def given():
  return reports.results()


@pytest.fixture(scope="session")
def folder(given, tmp_path_factory):
  folder = tmp_path_factory.mktemp("report")
  written = page.write(given, folder)
  assert written == [folder / "report.html", folder / "plots", folder / "results.json"]
  return folder
