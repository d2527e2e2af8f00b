"""Starting up: what a command loads, and what it asks of OpenMP before torch is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dmc.cli import WAITING, wait_asleep

# Runs commands one after the other, and says after each which of the slow packages are loaded by then. OpenMP reads its
# variables while torch is imported.
SESSION = """
import json, os, sys
import dmc.cli
assert "torch" not in sys.modules and "GOMP_SPINCOUNT" not in os.environ

def on_import(event, arguments):
    if event == "import" and arguments[0] == "torch":
        print("threads wait:", os.environ.get("GOMP_SPINCOUNT"))

sys.addaudithook(on_import)
for command in json.loads(sys.argv[1]):
    sys.argv = ["dmc", *command]
    try:
        dmc.cli.main()
    except SystemExit as stop:
        assert not stop.code, command
    slow = "torch torchvision timm datasets pyarrow pandas matplotlib sklearn scipy torch._dynamo sympy huggingface_hub"
    print("loaded:", *(name for name in slow.split() if name in sys.modules))
"""


def test_a_network_of_our_own_waits_for_no_other_library(
    two_models: tuple[Path, Path], labeled_folder: Path, aux_folder: Path, tmp_path: Path
) -> None:
    """Only training loads more of torch, by torch's own optimizers."""
    first, second = map(str, two_models)
    commands: list[list[object]] = [
        ["predict", first, aux_folder / "000.png"],
        ["evaluate", first, labeled_folder, "--rename", "red=a", "--rename", "green=b"],
        ["consolidate", first, second, "--aux", aux_folder, "-o", tmp_path / "m", "--epochs", "1", "--no-report"],
    ]
    unset = {name: value for name, value in os.environ.items() if name not in WAITING}
    typed = json.dumps(commands, default=str)
    said = subprocess.run([sys.executable, "-c", SESSION, typed], capture_output=True, text=True, env=unset)
    assert said.returncode == 0, said.stderr
    predicted, evaluated, merged = (line for line in said.stdout.splitlines() if line.startswith("loaded:"))
    assert predicted == evaluated == "loaded: torch"
    assert set(merged.split()) <= {"loaded:", "torch", "torch._dynamo", "sympy"}
    assert "threads wait: 10000" in said.stdout.splitlines()


@pytest.mark.parametrize("name", WAITING)
def test_how_threads_wait_is_left_to_who_has_said_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in WAITING:
        monkeypatch.setenv(other, "")  # remembers what to restore
        monkeypatch.delenv(other)
    monkeypatch.setenv(name, "1")
    before = dict(os.environ)
    wait_asleep()
    assert dict(os.environ) == before
    monkeypatch.delenv(name)
    wait_asleep()
    assert os.environ.get("GOMP_SPINCOUNT") == "10000"
