"""The verbs of the benchmark: `bench` and `reproduce`."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dmc.cli.options import AsJson, DataRoot, Download, Orders, ProfileName
from dmc.errors import DmcError
from dmc.extras import require_extra
from dmc.files import write_text

if TYPE_CHECKING:
    from dmc.bench.engines import Engine

Jobs = Annotated[
    int | None, typer.Option(min=1, help="Cells at once; local processes share the cores [default: 1; ray: all]")
]
EngineName = Annotated[
    Literal["local", "ray"], typer.Option(help="Where cells run: on this machine or on a Ray cluster")
]
CpusPerCell = Annotated[int | None, typer.Option(min=1, help="For --engine ray: CPUs of a cell [default: 1]")]
GpusPerCell = Annotated[
    float | None,
    typer.Option(min=0, help="For --engine ray: GPUs of a cell, such as 0.5 [default: 1 if there are any]"),
]

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting of the profile: loss=kd, consolidation.epochs=20"),
]


def bench(
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="digits, icifar100, cub200, voc, or a folder of train/ test/ aux/")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; runs that are finished in it are not repeated")],
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Classes that arrive at a time [default: 10; digits 2; voc as given]")
    ] = None,
    methods: Annotated[str, typer.Option(help="Method names or your own FILE.py, separated by commas, or all")] = "all",
    orders: Orders = 5,
    order: Annotated[int | None, typer.Option(min=0, help="Run only this class order, as one job of a cluster")] = None,
    profile: ProfileName = "paper",
    settings: Settings = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose regularisation strengths on held-out images of the first two groups")
    ] = False,
    jobs: Jobs = None,
    engine: EngineName = "local",
    cpus_per_cell: CpusPerCell = None,
    gpus_per_cell: GpusPerCell = None,
    data_root: DataRoot = None,
    download: Download = False,
    as_json: AsJson = False,
) -> None:
    """Compare class-incremental methods on a stream of classes."""
    from dmc.bench.datasets import download as fetch
    from dmc.bench.runner import Bench, require_none_failed
    from dmc.bench.streams import USUAL_GROUP, needed_data
    from dmc.methods import methods_named
    from dmc.recipes.profile import load_profile, parsed_settings
    from dmc.report.bench import report
    from dmc.report.writing import report_at_end

    place = chosen_engine(engine, jobs, cpus_per_cell, gpus_per_cell)
    changes, size = parsed_settings(settings or []), group_size or USUAL_GROUP.get(stream, 10)
    asked = load_profile(profile, stream, {"groups": []} if group_size else {}, changes)
    chosen = methods_named(methods, asked.task.model)
    if "classes" not in changes:
        asked = asked.with_room_for(size)
    if download:
        fetch(needed_data(stream, asked, any(method.needs_aux(asked) for method in chosen)), data_root)
    comparison = Bench(stream, size, asked, out, data_root, tune=tune)
    wanted = range(orders) if order is None else [order]
    if not comparison.complete(chosen, wanted):
        comparison.require_runnable(chosen)
    comparison.run_all(chosen, wanted, place)
    ran_as = f"{profile} with {', '.join(settings)}" if settings else profile
    rows, table = report(comparison, ran_as, typed_command())
    report_at_end(out)
    print(json.dumps(rows, indent=2) if as_json else table)
    require_none_failed(comparison.cells(chosen, wanted))


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A recipe; --list shows all")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; a recipe reuses what others left in it")] = Path(
        "reproduced"
    ),
    orders: Annotated[
        int | None,
        typer.Option(min=1, help="How many class orders; seeds, where the groups are given [default: 5; voc 1]"),
    ] = None,
    profile: ProfileName = "paper",
    settings: Settings = None,
    methods: Annotated[str, typer.Option(help="Further method names, or your own FILE.py, separated by commas")] = "",
    also: Annotated[
        list[str] | None, typer.Option(help="Add one more variant to the comparison: 'My photos: {aux: photos/}'")
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out variants whose data is missing")
    ] = False,
    jobs: Jobs = None,
    engine: EngineName = "local",
    cpus_per_cell: CpusPerCell = None,
    gpus_per_cell: GpusPerCell = None,
    data_root: DataRoot = None,
    download: Download = False,
    show: Annotated[bool, typer.Option("--list", help="Show all recipes and the data they need")] = False,
    as_json: AsJson = False,
) -> None:
    """Repeat a table or figure of the paper, beside its published numbers."""
    from dmc.bench.reproduce import known_recipes, recipe_job
    from dmc.bench.runner import require_none_failed
    from dmc.methods import methods_named
    from dmc.report.provenance import footnote
    from dmc.report.reproduce import as_list, report
    from dmc.report.writing import report_at_end

    if show:
        recipes = known_recipes(profile)
        print(json.dumps(recipes, indent=2) if as_json else as_list(recipes))
        return
    if name is None:
        raise DmcError("say which recipe; dmc reproduce --list shows all")
    place = chosen_engine(engine, jobs, cpus_per_cell, gpus_per_cell)
    added = [method.name for method in methods_named(methods)]
    job = recipe_job(name, profile, orders, out, data_root, added, also or [], skip_missing, settings or [])
    if download:
        job.download()
    rows = job.run(place)
    table = report(job, rows)
    write_text(job.folder / f"{name}-{profile}.md", f"{table}\n\n{footnote(job.made(rows), typed_command())}\n")
    write_text(job.folder / f"{name}-{profile}.json", json.dumps(rows, indent=2) + "\n")
    report_at_end(job.folder)
    print(json.dumps(rows, indent=2) if as_json else table)
    require_none_failed(job.cells(job.benches()))


def chosen_engine(name: str, jobs: int | None, cpus: int | None, gpus: float | None) -> "Engine":
    """Give the place where cells run, if all that it needs is installed."""
    if name == "ray":
        from dmc.bench.ray_cluster import Ray

        require_extra("cluster", "ray")
        if gpus and gpus > 1 and gpus % 1:
            raise DmcError(f"--gpus-per-cell {gpus:g}: a cell has a part of one GPU, or whole ones")
        return Ray(jobs, cpus or 1, gpus)
    from dmc.bench.local import Local

    if cpus is not None or gpus is not None:
        raise DmcError("--cpus-per-cell and --gpus-per-cell are settings of --engine ray")
    return Local(jobs or 1)


def typed_command() -> str:
    """Give the command that was typed, quoted so that it can be typed again."""
    return shlex.join(["dmc", *sys.argv[1:]])
