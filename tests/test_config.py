"""A setting is defined once: it is checked wherever it comes from, and the same in every place that shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from docs.write_settings import KEYWORDS, PAGE, keywords, page
from pydantic import ValidationError
from typer.main import get_command

import dmc
from dmc.cli import app
from dmc.config import (
    ClassifierConsolidateConfig,
    ConsolidateConfig,
    DetectorConsolidateConfig,
    Length,
    NetworkConfig,
    RunConfig,
)
from dmc.errors import DmcError
from dmc.recipes.profile import load_profile
from dmc.schedule import Schedule
from dmc.settings import Config, options_of
from tests.conftest import tiny

MERGING = (RunConfig, Length, Schedule, ConsolidateConfig, ClassifierConsolidateConfig, DetectorConsolidateConfig)


def test_a_configuration_is_frozen_and_every_change_is_checked() -> None:
    config = DetectorConsolidateConfig(anchors=16)
    with pytest.raises(ValidationError):
        config.anchors = 32
    assert config.changed({"box_weight": 2}) == DetectorConsolidateConfig(anchors=16, box_weight=2.0)
    with pytest.raises(DmcError, match=r"^box_weight -1 should be greater than or equal to 0$"):
        config.changed({"box_weight": -1})


@pytest.mark.parametrize(
    ("owner", "given", "words"),
    [
        (ClassifierConsolidateConfig, {"anchors": 5}, "anchors is a setting of detectors"),
        (DetectorConsolidateConfig, {"scale": "none"}, "scale is a setting of classifiers"),
        (
            ClassifierConsolidateConfig,
            {"temprature": 2},
            "there is no setting 'temprature'; did you mean 'temperature'?",
        ),
        (ClassifierConsolidateConfig, {"epoch": 2}, "there is no setting 'epoch'; did you mean 'epochs'?"),
        (ClassifierConsolidateConfig, {"loss": "L2"}, "loss 'L2' should be 'l2', 'l1' or 'kd'; did you mean 'l2'?"),
        (Schedule, {"lr": float("inf")}, "lr inf should be a finite number"),
        (Schedule, {"drops": (2,)}, "drops (2,) should be fractions of all epochs, between 0 and 1"),
        (Length, {"minutes": 1, "schedule": Schedule()}, "give a schedule or minutes, not both"),
        (NetworkConfig, {"memory": -1}, "memory -1 should be greater than or equal to 0"),
    ],
)
def test_mistakes_are_one_line(owner: type[Config], given: dict[str, Any], words: str) -> None:
    with pytest.raises(DmcError) as error:
        owner.of(given)
    assert str(error.value) == words


def test_settings_go_to_the_jobs_that_own_them() -> None:
    how, rest = RunConfig.taken_from({"resume": True, "epochs": 3, "minutes": None, "loss": "l1"})
    length, rest = Length.taken_from(rest)
    assert how == RunConfig(resume=True)
    assert length.changes == {"epochs": 3}
    assert rest == {"loss": "l1"}
    with pytest.raises(DmcError, match="give epochs or minutes, not both"):
        Length.taken_from({"epochs": 3, "minutes": 2})


def test_what_a_length_keeps_for_itself_cannot_be_given() -> None:
    length, rest = Length.taken_from({"share": 7, "changes": {"epochs": -3}, "epochs": 2})
    assert (length.share, length.changes) == (1.0, {"epochs": 2})
    with pytest.raises(DmcError, match="there is no setting 'share'"):
        ClassifierConsolidateConfig.of(rest)


def test_a_configuration_that_a_user_makes_is_checked_in_one_line() -> None:
    with pytest.raises(DmcError, match=r"^epochs 0 should be greater than or equal to 1$"):
        dmc.Schedule(epochs=0)


def test_a_profile_has_no_setting_that_it_would_ignore() -> None:
    for name in ("seed", "memory", "aux_limit", "held_out"):
        with pytest.raises(DmcError, match=f"there is no setting '{name}'"):
            load_profile("lite", "digits", {name: 1})


def test_random_weights_are_none_in_the_library() -> None:
    assert NetworkConfig(weights="random").weights is None
    assert NetworkConfig().weights == "auto"


def test_the_command_line_has_every_option_and_passes_on_what_was_typed() -> None:
    """Options that were not typed are not passed on, so that defaults are defined in one place."""
    commands: Any = get_command(app)
    typed = {p.name: p for p in commands.commands["consolidate"].params}
    for name, field in options_of(*MERGING):
        assert typed[name].default is None
        assert typed[name].help.startswith(field.description)
    assert typed["box_weight"].help.endswith("[default: 1]")
    assert typed["shape"].opts == ["--lr-shape"]
    assert (typed["balance"].opts, typed["balance"].secondary_opts) == (["--balance"], ["--no-balance"])
    assert typed["resume"].secondary_opts == []
    assert "top" not in typed


def test_a_run_writes_down_all_settings_of_its_job(tmp_path: Path, aux_folder: Path) -> None:
    """Settings that were not given are there with the values that were chosen."""
    dmc.consolidate([tiny("ab", 1), tiny("cd", 2)], aux_folder, tmp_path / "m", epochs=1, loss="kd", memory=1, seed=5)
    run = json.loads((tmp_path / "m" / "run.json").read_text())
    kept = {name for name in ClassifierConsolidateConfig.model_fields if name in run}
    assert kept == {"loss", "centring", "temperature", "scale", "balance", "weights", "views", "seed"}
    assert (run["loss"], run["temperature"], run["centring"], run["seed"]) == ("kd", 2.0, "per-teacher", 5)
    assert run["schedule"].keys() == Schedule.model_fields.keys()


def test_the_documentation_has_every_option() -> None:
    """`python docs/write_settings.py` brings it, and the API's keyword arguments, up to date."""
    assert PAGE.read_text() == page()
    assert KEYWORDS.read_text() == keywords()
    for name, _ in options_of(*MERGING):
        assert f"| `{name}`" in page()
