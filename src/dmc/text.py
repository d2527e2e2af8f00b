"""Text that came from others, such as class names and paths, made safe to show."""

import re

# Control characters, line ends, what turns the direction of writing, and the bytes of names that are not UTF-8.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MARKDOWN = re.compile(r"[\\`*\[\]<>|~#&]|(?<!\w)_|_(?!\w)")  # an underscore within a word means nothing


def one_line(text: object) -> str:
    """Show control characters as escapes, so that a text is one line and gives the terminal no commands."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def in_markdown(text: object) -> str:
    """Escape what Markdown or HTML would take for markup; the text is one line."""
    return MARKDOWN.sub(r"\\\g<0>", one_line(text))
