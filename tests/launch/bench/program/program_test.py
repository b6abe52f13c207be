"""The readers of a program's text stand by themselves."""

from tests.structure import ROOT, imported


def test_readers_of_programs_import_nothing_of_resjax():
  folder = ROOT / "launch/bench/program"
  readers = "hlo hlo_integers hlo_calls matrix_flops collectives moved_bytes parts"
  for name in readers.split():
    modules = imported(folder / f"{name}.py")
    assert not [module for module in modules if module.startswith("resjax")], name
