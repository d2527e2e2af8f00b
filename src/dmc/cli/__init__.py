"""The command line: parses, calls the library, prints. Each command imports what is slow to load only when it runs."""

import json
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from dmc.classes import counted, listed
from dmc.cli import benchmark, exporting, push, report, serve
from dmc.cli import show as showing
from dmc.cli.options import (
    AsJson,
    Aux,
    Data,
    Keep,
    KeepOf,
    Known,
    Models,
    OneModel,
    Out,
    Rename,
    RenameOf,
    Resuming,
    Seed,
    Val,
    as_typed,
    expands,
    free_folder,
    loaded_teachers,
    names_from,
    new_names,
)
from dmc.config import ConsolidateConfig, LearnConfig, Length, PredictConfig, RunConfig, TrainConfig
from dmc.errors import DmcError, first_line, is_out_of_memory
from dmc.model_config import provenance_lines
from dmc.processes import is_main, launched
from dmc.schedule import Schedule
from dmc.settings import Config
from dmc.text import one_line
from dmc.training.stopping import raise_on_signals

if TYPE_CHECKING:
    from dmc.models.model import Model


GOING_ON = ("bench", "reproduce", "demo")  # typed again, they begin with what they have finished
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # how OpenMP's threads wait: standard, GNU's, Intel's


class Verbs(TyperGroup):
    """The commands. One that is interrupted says what it has kept, and how to continue."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] == "merge":  # what people call it; the nearest name by spelling is another verb's
            ctx.fail("No such command 'merge'. Did you mean 'consolidate'?")
        name, command, rest = super().resolve_command(ctx, args)
        Notices.command = command if isinstance(command, TyperCommand) else None
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DmcError as error:
            raise DmcError(as_typed(str(error), command_of(ctx))) from error
        except KeyboardInterrupt as stop:
            said = [str(stop) or "interrupted", *getattr(stop, "__notes__", [])[:1]]
            if resumes(ctx) or ctx.invoked_subcommand in GOING_ON:
                said.append(f"the same command {'with --resume ' * resumes(ctx)}goes on")
            if sys.stderr.isatty():
                print(file=sys.stderr)  # after the ^C that it shows
            complain("; ".join(said))
            raise typer.Exit(128 + getattr(stop, "by", signal.SIGINT)) from None


def resumes(ctx: Any) -> bool:
    """Tell whether the command that is run has the option --resume, as all do that train one model."""
    command = command_of(ctx)
    return command is not None and any(option.name == "resume" for option in command.params)


def command_of(ctx: Any) -> TyperCommand | None:
    """Give the command that is run, if there is one of this name."""
    return ctx.command.commands.get(ctx.invoked_subcommand)  # type: ignore[no-any-return]


app = typer.Typer(
    name="dmc",
    cls=Verbs,
    help="One vision model out of several, without the data they were trained on.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


TRAINING: tuple[type[Config], ...] = (RunConfig, Length, Schedule)
MERGING: tuple[type[Config], ...] = (Length, Schedule, ConsolidateConfig, *ConsolidateConfig.__subclasses__())


@app.command(cls=Resuming)
@expands(*TRAINING, TrainConfig, *TrainConfig.__subclasses__())
def train(data: Data, out: Out, settings: dict[str, Any], keep: Keep = None, val: Val = "auto") -> None:
    """Train a specialist on labeled images, or a detector on images with boxes."""
    free_folder(out, settings)
    import dmc

    announce(dmc.train(data, out, keep=names_from(keep), val=val, **settings), out)


@app.command(cls=Resuming)
@expands(RunConfig, *MERGING)
def consolidate(
    teachers: Models, aux: Aux, out: Out, settings: dict[str, Any], keep: KeepOf = None, rename: RenameOf = None
) -> None:
    """Merge two or more models into one, with unlabeled images only."""
    free_folder(out, settings)
    import dmc

    announce(dmc.consolidate(loaded_teachers(teachers, keep, rename), aux, out, **settings), out)


@app.command(cls=Resuming)
@expands(RunConfig, LearnConfig, *MERGING)
def learn(
    model: OneModel,
    data: Data,
    aux: Aux,
    out: Out,
    settings: dict[str, Any],
    keep: Keep = None,
    val: Val = "auto",
) -> None:
    """Teach a model the classes of DATA without its old data."""
    free_folder(out, settings)
    import dmc

    announce(dmc.learn(model, data, aux, out, keep=names_from(keep), val=val, **settings), out)


@app.command()
@expands(*MERGING)
def check(
    teachers: Models,
    aux: Aux,
    settings: dict[str, Any],
    keep: KeepOf = None,
    rename: RenameOf = None,
    draw: Annotated[Path | None, typer.Option(help="Detectors: folder for pictures of what each teacher finds")] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a consolidation before it trains: classes, preprocessing, images, balance, time. Trains nothing."""
    import dmc
    from dmc.report.check import as_text
    from dmc.report.finds import draw_finds

    loaded = loaded_teachers(teachers, keep, rename)
    drawn = draw_finds(loaded, aux, draw, settings.get("seed", 0)) if draw is not None else []
    found = dmc.check(loaded, aux, **settings)
    show(json.dumps(found, indent=2) if as_json else as_text(found))
    if drawn and not as_json:
        show(f"what the teachers find: {len(drawn)} pictures in {draw}")


@app.command()
def evaluate(
    model: OneModel,
    data: Data,
    keep: Keep = None,
    known: Known = False,
    rename: Rename = None,
    as_json: AsJson = False,
) -> None:
    """Measure accuracy, or a detector's average precision, on labeled images, over all classes that the model knows."""
    import dmc

    result = dmc.evaluate(model, data, keep=names_from(keep), known=known, rename=new_names(rename))
    show(json.dumps(result.as_dict(), indent=2) if as_json else result.as_text())


@app.command()
@expands(*PredictConfig.__subclasses__())
def predict(
    model: OneModel,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Image files, or folders of them")],
    settings: dict[str, Any],
    draw: Annotated[Path | None, typer.Option(help="Detectors: folder for the pictures with boxes drawn")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the most probable classes of each image, or the objects that a detector finds in it.

    An image that cannot be read is named, the others are answered, and the exit status is 2.
    """
    import dmc
    from dmc.report.predictions import predictions
    from dmc.tasks import task_of

    loaded = dmc.load(model)
    task = task_of([loaded])
    shown = predictions(task, loaded, images, task.predict_config.of(settings), draw)
    if as_json or shown.text:
        show(json.dumps(shown.data, indent=2) if as_json else shown.text)
    if shown.failed:  # the others were answered
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
    """Run the whole story offline: merge two digit classifiers, or two digit detectors, by looking at letters."""
    from dmc.demos import classification, detection

    story = {"classify": classification, "detect": detection}[task]
    folder = out or Path(story.FOLDER)
    rows = story.run_demo(seed, folder)
    if as_json:
        print(json.dumps(story.as_dict(rows), indent=2))
        return
    print(story.as_table(rows))
    show(f"\nmodels and picture: {folder} ({folder / 'demo.png'})")


def announce(model: "Model", out: Path) -> None:
    """Print what a finished run made: the model, its classes and its provenance."""
    print(one_line(f"{out}: {model.arch}, {counted(model.names)}, {model.parameter_count:,} parameters"))
    print(f"  classes: {listed(model.names)}")
    for key, line in provenance_lines(model.provenance):
        print(one_line(f"  {key}: {line}"))


def show(text: str) -> None:
    """Print lines, in which names that came from others give the terminal no commands."""
    print("\n".join(map(one_line, text.split("\n"))))


app.command()(benchmark.bench)
app.command()(benchmark.reproduce)
app.command()(showing.show)
app.command()(push.push)
app.command()(exporting.export)
app.command()(report.report)
app.command()(serve.serve)


def show_version(wanted: bool) -> None:
    if wanted:
        import dmc

        print(f"dmc {dmc.__version__}")
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version", is_eager=True, callback=show_version)
    ] = False,
) -> None:
    """One vision model out of several, without the data they were trained on."""
    if launched() and not resumes(ctx):
        raise DmcError(f"{ctx.invoked_subcommand} works in one process: run it without a launcher")


class Notices(logging.Handler):
    """Print what the library logs as lines on stderr, above a progress bar where there is one."""

    command: TyperCommand | None = None  # that is run: settings are named as its options

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(one_line(f"dmc: {as_typed(record.getMessage(), self.command)}"), file=sys.stderr)


def show_notices() -> None:
    """Let `Notices`, and nothing else, print what the library logs; of several processes only the first speaks."""
    notices = logging.getLogger("dmc")
    notices.handlers = [Notices()]
    notices.setLevel(logging.INFO if is_main() else logging.ERROR)
    if not is_main():
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115


def complain(text: str) -> None:
    """Print an error in one line; of several processes, which mostly have the same, only the first does."""
    if is_main():
        print(one_line(f"dmc: {text}"), file=sys.stderr)


def wait_asleep() -> None:
    """Let threads sleep while they wait for each other, unless the user has said how they wait.

    By default they spin for milliseconds: on a busy machine, often on the very core that the awaited thread needs
    (results/speed.md). OpenMP reads this once, when torch is loaded.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = "10000"  # at once would make small networks slow on free cores


def main() -> None:
    """Run the command line. Every error is one line and exit status 2; `dmc` alone shows the help."""
    wait_asleep()
    show_notices()
    raise_on_signals()
    warnings.filterwarnings("ignore", module="PIL")  # odd EXIF data and the like: the pixels are what counts
    try:
        sys.exit(app(prog_name="dmc", standalone_mode=False))
    except typer.TyperException as error:  # an unknown option or command, a value that does not fit
        if len(sys.argv) == 1:
            print(error, file=sys.stderr)  # the help
        else:
            complain(error.format_message())
    except DmcError as error:
        complain(str(error))
    except OSError as error:  # a full disk, a folder that is a file, no permission
        complain(f"{error.filename or 'system'}: {error.strerror or first_line(error)}")
    except (KeyboardInterrupt, typer.Abort) as stop:  # before or after a command: typer makes an Abort of the first
        complain("interrupted")
        sys.exit(128 + getattr(stop.__context__ or stop, "by", signal.SIGINT))
    except Exception as error:  # a damaged file that its reader chokes on, or a bug of ours
        if is_out_of_memory(error):
            complain(f"out of memory: {first_line(error)}; take smaller images or batches, or hold fewer (--memory)")
            sys.exit(2)
        if os.environ.get("DMC_TRACEBACK"):
            raise
        said = f"{type(error).__name__}: {first_line(error)}"
        line = one_line(f"dmc: unexpected {said} (DMC_TRACEBACK=1 shows where)")
        print(line, file=sys.stderr)  # of whichever process
    sys.exit(2)
