"""What a report reads of a run's folder; a run that is still going, or was made by an earlier version, has less."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dmc.data.thumbnails import decoded
from dmc.documents import read_json
from dmc.errors import DmcError
from dmc.model_config import ModelConfig
from dmc.report.run_records import Epoch, ReportedRun, read_epochs
from dmc.training.findings import FILE, SavedFindings


@dataclass(frozen=True)
class RunFolder:
    """A run of `train`, `consolidate` or `learn`."""

    folder: Path
    record: ReportedRun
    epochs: list[Epoch]
    result: ModelConfig | None  # None: it is not finished
    findings: SavedFindings | None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what there is; a damaged file is one line."""
        config, findings = folder / "config.json", folder / FILE
        return cls(
            folder,
            read_json(folder / "run.json", ReportedRun),
            read_epochs(folder / "metrics.jsonl"),
            read_json(config, ModelConfig) if config.exists() else None,
            read_findings(findings) if findings.exists() else None,
        )

    @property
    def total_epochs(self) -> int | None:
        """How many epochs the run has when it is finished."""
        planned = (self.record.schedule or {}).get("epochs")
        return planned if isinstance(planned, int) else None


def read_findings(path: Path) -> SavedFindings:
    """Read report.json, and look at every picture in it."""
    found = read_json(path, SavedFindings)
    try:
        for picture in found.sheet:
            decoded(picture)
    except DmcError as error:
        raise DmcError(f"{path} is damaged: it {error}") from None
    return found
