"""Notes below a table on how it was made, with all that is needed to make it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Made = Mapping[str, Any]  # what `dmc.training.run_folder.made` gives


def caution(profile: str) -> str:
    """Word the caution below a table that was not made at the paper's settings; empty for one that was."""
    if profile == "smoke":
        return "\n\nMade with the profile `smoke`: its numbers only show that everything runs, and mean nothing."
    if profile == "paper":
        return ""
    return f"\n\nMade with the profile `{profile}`: not the paper's settings, so not the paper's numbers."


def footnote(rows: Mapping[str, Sequence[Made]], command: str | None = None) -> str:
    """Word the note below a table: the command, if given, the versions it ran with, and the minutes of each row.

    `rows` holds, for each row, how each of its parts was made.
    """
    parts = [part for made in rows.values() for part in made]
    ran_with = [
        f"{what} {', '.join(sorted({str(part[what]) for part in parts if what in part}))}"
        for what in ("commit", "torch", "threads", "precision")
        if any(what in part for part in parts)
    ]
    minutes = [f"{row} {sum(part['minutes'] for part in made):.1f}" for row, made in rows.items() if made]
    lines = [f"`{command}`"] if command else []
    if minutes:
        lines += [
            f"Made with {'; '.join(ran_with)}.",
            f"Minutes, not counting what was there before: {', '.join(minutes)}.",
        ]
    return "\n\n".join(lines)
