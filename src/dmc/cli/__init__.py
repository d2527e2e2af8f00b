"""The command line: parses, calls the library, prints. Heavy imports happen inside the verbs."""

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from dmc.classes import counted, listed
from dmc.cli.options import (
    AsJson,
    Aux,
    Data,
    DataRoot,
    Download,
    Keep,
    Known,
    Memory,
    Model,
    Orders,
    ProfileName,
    Rename,
    RunOptions,
    Seed,
    Val,
    Weights,
    beginning,
    distillation_options,
    expands,
    length_options,
    names_from,
    new_names,
    run_options,
    teacher_options,
)
from dmc.errors import DmcError, first_line
from dmc.files import write_text

if TYPE_CHECKING:
    from dmc.models.detector import Detector
    from dmc.models.specialist import Specialist


class Verbs(TyperGroup):
    """The verbs, each of which may be interrupted: that says what was kept, and how to go on."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            said = [str(stop) or "interrupted", *getattr(stop, "__notes__", [])[:1]]
            if len(said) > 1:
                resumes = any(option.name == "resume" for option in self.commands[ctx.invoked_subcommand].params)
                said.append(f"the same command {'with --resume ' * resumes}goes on")
            print(f"\ndmc: {'; '.join(said)}", file=sys.stderr)
            raise typer.Exit(128 + getattr(stop, "by", signal.SIGINT)) from None


app = typer.Typer(
    name="dmc",
    cls=Verbs,
    help="One vision model out of several, without the data they were trained on.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
@expands(run=run_options, length=length_options)
def train(
    data: Data,
    run: RunOptions,
    length: dict[str, Any],
    arch: Annotated[
        str | None,
        typer.Option(
            help="cifar_resnetN (N = 6n+2), torchvision:NAME, timm's, your FILE.py:FUNCTION; "
            "or a detector: retinanet_resnet50_fpn [default: one that suits the images]"
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Input size [default: one that suits the images]")] = None,
    keep: Keep = None,
    val: Val = "auto",
    output: Annotated[
        Literal["softmax", "sigmoid"] | None,
        typer.Option(help="Classifiers: what the logits mean [default: softmax]"),
    ] = None,
    weights: Weights = "auto",
    seed: Seed = 0,
    memory: Memory = 4,
) -> None:
    """Train a specialist on labeled images, or a detector on scenes with boxes."""
    import dmc

    specialist = dmc.train(
        data,
        arch=arch,
        size=size,
        val=val,
        keep=names_from(keep),
        output=output,
        weights=beginning(weights),
        seed=seed,
        memory=int(memory * 2**30),
        **length,
        **run,
    )
    announce(specialist, run["out"])


@app.command()
@expands(run=run_options, teachers=teacher_options, settings=distillation_options, length=length_options)
def consolidate(
    aux: Aux,
    teachers: "list[Specialist | Detector]",
    run: RunOptions,
    settings: dict[str, Any],
    length: dict[str, Any],
) -> None:
    """Merge two or more models into one, with unlabeled images only."""
    import dmc

    announce(dmc.consolidate(teachers, aux, **run, **settings, **length), run["out"])


@app.command()
@expands(run=run_options, settings=distillation_options, length=length_options)
def learn(
    model: Model,
    data: Data,
    aux: Aux,
    run: RunOptions,
    settings: dict[str, Any],
    length: dict[str, Any],
    keep: Keep = None,
    val: Val = "auto",
    specialist_epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over DATA [default: by the number of images; paper 200]")
    ] = None,
) -> None:
    """Teach a model the classes of DATA without its old data."""
    import dmc

    taught = dmc.learn(
        model,
        data,
        aux,
        keep=names_from(keep),
        val=val,
        specialist_epochs=specialist_epochs,
        **run,
        **settings,
        **length,
    )
    announce(taught, run["out"])


@app.command()
@expands(teachers=teacher_options, settings=distillation_options, length=length_options)
def check(
    aux: Aux,
    teachers: "list[Specialist | Detector]",
    settings: dict[str, Any],
    length: dict[str, Any],
    as_json: AsJson = False,
) -> None:
    """Verify a consolidation before it trains: classes, preprocessing, images, balance, time. Changes nothing."""
    import dmc
    from dmc.report.check import as_text

    found = dmc.check(teachers, aux, **settings, **length)
    print(json.dumps(found, indent=2) if as_json else as_text(found))


@app.command()
def evaluate(
    model: Model,
    data: Data,
    keep: Keep = None,
    known: Known = False,
    rename: Rename = None,
    as_json: AsJson = False,
) -> None:
    """Accuracy on labeled images, or average precision on scenes, over all classes that the model knows."""
    import dmc
    from dmc.report.evaluation import as_dict, as_text

    result = dmc.evaluate(model, data, keep=names_from(keep), known=known, rename=new_names(rename))
    print(json.dumps(as_dict(result), indent=2) if as_json else as_text(result))


@app.command()
def predict(
    model: Model,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Image files, or folders of them")],
    top: Annotated[int | None, typer.Option(min=1, help="Classifiers: how many classes to show [default: 5]")] = None,
    least: Annotated[
        float | None, typer.Option(min=0, max=1, help="Detectors: the least score to show [default: 0.3]")
    ] = None,
    draw: Annotated[Path | None, typer.Option(help="Detectors: folder for the pictures with boxes drawn")] = None,
    as_json: AsJson = False,
) -> None:
    """The most probable classes of each image, or the objects that a detector finds in it.

    An image that cannot be read is named, the others are answered, and the exit status is 2.
    """
    import dmc
    from dmc.report.evaluation import classes_of, objects_of

    loaded = dmc.load(model)
    if isinstance(loaded, dmc.Specialist):
        if least is not None or draw is not None:
            raise DmcError(f"{loaded.name} is a classifier: --least and --draw are for detectors")
        show = classes_of(loaded, images, 5 if top is None else top)
    else:
        if top is not None:
            raise DmcError(f"{loaded.name} is a detector: --top is for classifiers, --least chooses among objects")
        show = objects_of(loaded, images, 0.3 if least is None else least, draw)
    if as_json or show.text:
        print(json.dumps(show.data, indent=2) if as_json else show.text)
    if show.failed:  # the others were answered
        raise typer.Exit(2)


@app.command()
def demo(
    task: Annotated[
        Literal["classify", "detect"], typer.Option(help="classify takes about a minute, detect about five")
    ] = "classify",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder [default: dmc-demo, dmc-demo-detect]")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """The whole story, offline: merge two digit specialists, or two digit detectors, by looking at letters."""
    if task == "classify":
        from dmc.demos.classification import as_table, run_demo

        folder = out or Path("dmc-demo")
        rows = run_demo(seed, folder)
        found: Any = {row.method: {"old": row.old, "new": row.new, "all": row.all} for row in rows}
        table = as_table(rows)
    else:
        from dmc.demos import detection as detection

        folder = out or Path("dmc-demo-detect")
        seen = detection.run_demo(seed, folder)
        found = {row.model: {"old": row.old, "new": row.new, "parameters": row.parameters} for row in seen}
        table = detection.as_table(seen)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(table)
    print(f"\nmodels and picture: {folder} ({folder / 'demo.png'})")


@app.command()
def bench(
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="digits, icifar100, cub200, voc, or a folder of train/ test/ aux/")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; finished cells in it are not run again")],
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Classes that arrive at a time [default: 10; digits 2; voc as given]")
    ] = None,
    methods: Annotated[str, typer.Option(help="Names, all, or your own FILE.py, separated by commas")] = "all",
    orders: Orders = 5,
    order: Annotated[int | None, typer.Option(min=0, help="Run only this order (one job of a scheduler)")] = None,
    profile: ProfileName = "paper",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting of the profile: loss=kd, consolidation.epochs=20"),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose regularisation strengths on held-out images of the first two groups")
    ] = False,
    data_root: DataRoot = None,
    download: Download = False,
    as_json: AsJson = False,
) -> None:
    """Compare class-incremental methods on a stream of classes."""
    from dmc.bench.datasets import download as fetch
    from dmc.bench.runner import Bench
    from dmc.bench.streams import USUAL_GROUP, needed_data
    from dmc.methods import methods_named
    from dmc.recipes.profile import load_profile, parsed_settings
    from dmc.report.bench import report

    changes, size = parsed_settings(settings or []), group_size or USUAL_GROUP.get(stream, 10)
    asked = load_profile(profile, stream, {"groups": []} if group_size else {}, changes)
    chosen = methods_named(methods, asked.task.singular)
    if "classes" not in changes:
        asked = asked.with_room_for(size)
    if download:
        fetch(needed_data(stream, asked, any(method.uses_aux for method in chosen)), data_root)
    comparison = Bench(stream, size, asked, out, data_root, tune=tune)
    wanted = range(orders) if order is None else [order]
    if not comparison.complete(chosen, wanted):
        comparison.require_runnable(chosen)
    comparison.run_all(chosen, wanted)
    rows, table = report(comparison, f"{profile} with {', '.join(settings)}" if settings else profile)
    print(json.dumps(rows, indent=2) if as_json else table)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A recipe; --list shows all")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; recipes find in it what others made")] = Path(
        "reproduced"
    ),
    orders: Annotated[
        int | None,
        typer.Option(min=1, help="How many class orders; seeds, where the groups are given [default: 5; voc 1]"),
    ] = None,
    profile: ProfileName = "paper",
    methods: Annotated[str, typer.Option(help="More methods, or your own FILE.py, separated by commas")] = "",
    also: Annotated[
        list[str] | None, typer.Option(help="Compare one more setting: 'My photos: {aux: photos/}'")
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out settings whose data is not there")
    ] = False,
    data_root: DataRoot = None,
    download: Download = False,
    show: Annotated[bool, typer.Option("--list", help="Show all recipes and the data they need")] = False,
    as_json: AsJson = False,
) -> None:
    """Repeat a table or figure of the paper, beside its published numbers."""
    from dmc.bench.reproduce import known_recipes, recipe_job
    from dmc.methods import methods_named
    from dmc.report.provenance import footnote
    from dmc.report.reproduce import as_list, report

    if show:
        recipes = known_recipes(profile)
        print(json.dumps(recipes, indent=2) if as_json else as_list(recipes))
        return
    if name is None:
        raise DmcError("say which recipe; dmc reproduce --list shows all")
    added = [method.name for method in methods_named(methods)]
    job = recipe_job(name, profile, orders, out, data_root, added, also or [], skip_missing)
    if download:
        job.download()
    rows = job.run()
    table = report(job, rows)
    write_text(job.folder / f"{name}-{profile}.md", f"{table}\n\n{footnote(job.made(rows))}\n")
    write_text(job.folder / f"{name}-{profile}.json", json.dumps(rows, indent=2) + "\n")
    print(json.dumps(rows, indent=2) if as_json else table)


def announce(specialist: "Specialist | Detector", out: Path) -> None:
    """What a finished run leaves behind, in a few lines."""
    print(f"{out}: {specialist.arch}, {counted(specialist.names)}, {specialist.parameter_count:,} parameters")
    print(f"  classes: {listed(specialist.names)}")
    for key, value in specialist.provenance.items():
        for line in value if isinstance(value, list) else [value]:
            print(f"  {key}: {line}")


def show_version(wanted: bool) -> None:
    if wanted:
        import dmc

        print(f"dmc {dmc.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version", is_eager=True, callback=show_version)
    ] = False,
) -> None:
    """One vision model out of several, without the data they were trained on."""


class Notices(logging.Handler):
    """Print what the library logs as lines on stderr, above a progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(f"dmc: {record.getMessage()}", file=sys.stderr)


def show_notices() -> None:
    notices = logging.getLogger("dmc")
    notices.handlers = [Notices()]
    notices.setLevel(logging.INFO)


def main() -> None:
    """Every error is one line, and exit status 2; `dmc` alone shows what there is."""
    show_notices()
    try:
        sys.exit(app(prog_name="dmc", standalone_mode=False))
    except typer.TyperException as error:  # an option or a verb that is not there, a value that does not fit
        print(error if len(sys.argv) == 1 else f"dmc: {error.format_message()}", file=sys.stderr)
    except DmcError as error:
        print(f"dmc: {error}", file=sys.stderr)
    except OSError as error:  # a full disk, a folder that is a file, no permission
        print(f"dmc: {error.filename or 'system'}: {error.strerror or first_line(error)}", file=sys.stderr)
    except Exception as error:  # out of memory, a damaged file that its reader chokes on, or a bug of ours
        if os.environ.get("DMC_TRACEBACK"):
            raise
        said = f"{type(error).__name__}: {first_line(error)}"
        print(f"dmc: unexpected {said} (DMC_TRACEBACK=1 shows where)", file=sys.stderr)
    sys.exit(2)
