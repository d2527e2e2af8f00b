"""The note below a table on how it was made."""

from __future__ import annotations

from dmc.report.provenance import footnote

MADE = {"LwF": [{"commit": "abc", "torch": "2.7", "threads": 1, "minutes": 1.5}]}


def test_the_command_is_told_or_left_out() -> None:
    made = "Made with commit abc; torch 2.7; threads 1.\n\nMinutes, not counting what was there before: LwF 1.5."
    assert footnote(MADE, "dmc bench digits -o out") == f"`dmc bench digits -o out`\n\n{made}"
    assert footnote(MADE) == made
