"""How a table was made, in three lines below it: enough to make it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Made = Mapping[str, Any]  # what `dmc.training.run_folder.made` gives


def caution(profile: str) -> str:
    """What a table that was not made at the paper's settings says below itself; empty for one that was."""
    if profile == "smoke":
        return "\n\nMade with the profile `smoke`: its numbers only show that everything runs, and mean nothing."
    if profile == "paper":
        return ""
    return f"\n\nMade with the profile `{profile}`: not the paper's settings, so not the paper's numbers."


def footnote(rows: Mapping[str, Sequence[Made]], command: str | None = None) -> str:
    """The command if there was one, what it ran with, and the minutes of each row, whose parts were made one by one."""
    parts = [part for made in rows.values() for part in made]
    ran_with = [
        f"{what} {', '.join(sorted({str(part[what]) for part in parts if what in part}))}"
        for what in ("commit", "torch", "threads")
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
