"""Draw the house from its imports: house.svg and house.png, the table in architecture.md, the map in CONTRIBUTING.md.

Run `.venv/bin/python docs/draw_house.py` when an import between rooms has come or gone; a test says when.

A room is a folder of src/dmc, or a file beside the folders; files that need no folder are one room, the ground. The
longest way of imports from a room to the ground is its height.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from random import Random
from textwrap import fill
from typing import Any

from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Line
from sklearn.isotonic import isotonic_regression

from dmc.report.figures import FONT, new_figure, save

DOCS = Path(__file__).parent
HOUSE = DOCS.parent / "src" / "dmc"
PAGE, GUIDE = DOCS / "architecture.md", DOCS.parent / "CONTRIBUTING.md"
GROUND = "ground"
BEGIN, END = "<!-- written by draw_house.py -->\n", "<!-- up to here -->\n"
WIDE, TALL, FLOOR = 2.4, 0.76, 1.14  # of a room, and from one floor to the next, in inches
GAP, LANE = 0.2, 0.3  # between rooms, and what an arrow takes that passes between them
Graph = dict[str, set[str]]  # who imports whom


def modules() -> dict[str, Path]:
    """Find the files of the package by the names they are imported by; `__main__` is only a door."""
    found = {}
    for path in sorted(HOUSE.rglob("*.py")):
        if path.stem != "__main__":
            found[".".join(["dmc", *path.relative_to(HOUSE).with_suffix("").parts]).removesuffix(".__init__")] = path
    return found


def imports() -> Graph:
    """Read which module imports which, anywhere in its file."""
    known = modules()
    graph: Graph = {}
    for module, path in known.items():
        names = set(_imported(ast.parse(path.read_text(encoding="utf-8"))))
        homes = {name if name in known else name.rpartition(".")[0] for name in names}
        graph[module] = (homes & known.keys()) - {module}
    return graph


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


def heights(graph: Graph) -> dict[str, int]:
    """Measure the longest way down from each node; `graphlib.CycleError` where one leads back."""
    found: dict[str, int] = {}
    for node in TopologicalSorter(graph).static_order():
        found[node] = max((found[below] + 1 for below in graph[node]), default=0)
    return found


def between(graph: Graph, room: Mapping[str, str]) -> Graph:
    """Reduce imports between modules to those between their rooms."""
    found: Graph = {name: set() for name in room.values()}
    for module, below in graph.items():
        found[room[module]] |= {room[other] for other in below} - {room[module]}
    return found


def rooms(graph: Graph) -> dict[str, str]:
    """Name the room of each module."""
    room = {module: [*module.split("."), "__init__"][1] for module in graph}
    below = between(graph, room)
    ground: set[str] = set()
    for name in TopologicalSorter(below).static_order():
        if not (HOUSE / name).is_dir() and below[name] <= ground:
            ground.add(name)
    return {module: GROUND if name in ground else name for module, name in room.items()}


def essential(graph: Graph) -> Graph:
    """Leave out what follows from the rest: a -> c where there are a -> b and b -> c."""
    reach: Graph = {}
    for node in TopologicalSorter(graph).static_order():
        reach[node] = graph[node].union(*(reach[below] for below in graph[node]))
    return {node: {b for b in below if not any(b in reach[c] for c in below)} for node, below in graph.items()}


def sentence(room: str) -> str:
    """Quote the first sentence that a room says about itself; the ground names its files."""
    if room == GROUND:
        return ", ".join(module.removeprefix("dmc.") for module, home in rooms(imports()).items() if home == GROUND)
    path = HOUSE / room / "__init__.py" if (HOUSE / room).is_dir() else HOUSE / f"{room}.py"
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"\.( [A-Z]|\n|$)", said)[0].replace("\n", " ")


def table(graph: Graph) -> str:
    """Write down all that each room imports."""
    order = downwards(graph)
    lines = ["| room | imports |", "|---|---|"]
    for room in order:
        lines.append(f"| `{room}` | {', '.join(f'`{below}`' for below in order if below in graph[room])} |")
    return "\n".join(lines) + "\n"


def listing(graph: Graph) -> str:
    """Write down what each room is."""
    return "".join(f"- `{room}`: {sentence(room)}\n" for room in downwards(graph))


def downwards(graph: Graph) -> list[str]:
    """Order the rooms from the top to the ground."""
    high = heights(graph)
    return sorted(graph, key=lambda room: (-high[room], room))


Stop = tuple[str, str, int]  # a room twice, or upper and lower end of an arrow that passes a floor; the floor


def ways(arrows: Graph, high: Mapping[str, int]) -> list[list[Stop]]:
    """Lead each arrow from floor to floor."""
    found = []
    for upper, below in sorted(arrows.items()):
        for lower in sorted(below):
            passed = [(upper, lower, floor) for floor in range(high[upper] - 1, high[lower], -1)]
            found.append([(upper, upper, high[upper]), *passed, (lower, lower, high[lower])])
    return found


def places(stops: Sequence[Stop], lines: Sequence[Sequence[Stop]]) -> dict[Stop, float]:
    """Choose each stop's place on its floor: close to what it is tied to above and below, clear of the others."""
    tied: dict[Stop, list[Stop]] = defaultdict(list)
    for one, other in (pair for line in lines for pair in pairwise(line)):
        tied[one].append(other)
        tied[other].append(one)
    floors: dict[int, list[Stop]] = defaultdict(list)
    for stop in stops:
        floors[stop[2]].append(stop)
    found = {stop: float(i) for row in floors.values() for i, stop in enumerate(row)}
    for _ in range(60):  # each time a little better
        for floor in (*sorted(floors), *sorted(floors, reverse=True)):
            wish = {s: sum(found[t] for t in tied[s]) / len(tied[s]) if tied[s] else found[s] for s in floors[floor]}
            row = sorted(wish, key=wish.__getitem__)
            found |= zip(row, _clear([wish[stop] for stop in row], [_width(stop) for stop in row]), strict=True)
    return found


def _width(stop: Stop) -> float:
    return WIDE + GAP if stop[0] == stop[1] else LANE


def _clear(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Move ascending middles as little as possible, so that nothing overlaps."""
    middles = [sum(widths[:i]) + width / 2 for i, width in enumerate(widths)]
    starts = isotonic_regression([want - middle for want, middle in zip(wanted, middles, strict=True)])
    return [float(start) + middle for start, middle in zip(starts, middles, strict=True)]


def draw(graph: Graph, path: Path) -> None:
    """Draw rooms as boxes on their floors, and the essential imports as arrows, each with its name in the SVG.

    Of several arrangements, the one with the straightest arrows is taken."""
    high = heights(graph)
    lines = ways(essential(graph), high)
    stops = sorted({stop for line in lines for stop in line} | {(room, room, high[room]) for room in graph})
    tries = [places(Random(seed).sample(stops, len(stops)), lines) for seed in range(20)]
    x = min(tries, key=lambda x: sum(abs(x[one] - x[other]) for line in lines for one, other in pairwise(line)))
    left, right = (pick(x.values()) + side * (WIDE / 2 + GAP) for pick, side in ((min, -1), (max, 1)))
    top = max(high.values()) * FLOOR
    figure, (plot,) = new_figure(1, 1, size=(right - left, top + FLOOR))
    plot.set(xlim=(left, right), ylim=(-FLOOR / 2, top + FLOOR / 2), aspect="equal")
    plot.axis("off")
    for room in graph:
        _draw_room(plot, room, x[room, room, high[room]], high[room] * FLOOR)
    for line in lines:
        _draw_arrow(plot, [(x[stop], stop[2] * FLOOR) for stop in line], f"{line[0][0]} imports {line[-1][0]}")
    save(figure, path)


def _draw_room(plot: Any, room: str, x: float, y: float) -> None:
    face, edge = ("#e8f1f8", "#0072b2") if (HOUSE / room).is_dir() else ("#fbf1dc", "#b87a00")
    wide = 2 * WIDE if room == GROUND else WIDE  # it names many files, and nothing stands beside it
    corner, round_ = (x - wide / 2, y - TALL / 2), "round,pad=0,rounding_size=0.06"
    plot.add_patch(FancyBboxPatch(corner, wide, TALL, boxstyle=round_, facecolor=face, edgecolor=edge, linewidth=1))
    plot.text(x, y + 0.31, room, ha="center", va="top", fontsize=FONT + 2, weight="bold")
    said = fill(sentence(room).replace("`", ""), round(17.5 * wide))
    plot.text(x, y + 0.1, said, ha="center", va="top", fontsize=FONT - 1, color="#333333")


def _draw_arrow(plot: Any, stops: Sequence[tuple[float, float]], name: str) -> None:
    """Leave below the first stop, pass the others upright, end above the last."""
    points, codes = [(stops[0][0], stops[0][1] - TALL / 2)], [Line.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(stops):
        leave, arrive, half = y0 - TALL / 2, y1 + TALL / 2, (FLOOR - TALL) / 2
        points += [(x0, leave), (x0, leave - half), (x1, arrive + half), (x1, arrive)]
        codes += [Line.LINETO, Line.CURVE4, Line.CURVE4, Line.CURVE4]
    arrow = FancyArrowPatch(path=Line(points, codes), arrowstyle="-|>", mutation_scale=9, color="#555555", linewidth=1)
    arrow.set_gid(name)
    plot.add_patch(arrow)


def pages(graph: Graph) -> dict[Path, str]:
    """Put what follows from the graph into the texts of both pages, between their marks."""
    found = {}
    for path, text in ((PAGE, table(graph)), (GUIDE, listing(graph))):
        before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
        found[path] = f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}"
    return found


def main() -> None:
    graph = imports()
    house = between(graph, rooms(graph))
    for path, text in pages(house).items():
        path.write_text(text, encoding="utf-8")
    draw(house, DOCS / "house.png")


if __name__ == "__main__":
    main()
