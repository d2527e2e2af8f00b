"""The verb `push`."""

from typing import Annotated

import typer

from dmc.cli.options import OneModel
from dmc.text import one_line


def push(
    model: OneModel,
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The model's name on the hub")],
    license: Annotated[
        str, typer.Option(help="The model's license, by the hub's short name: apache-2.0, mit, cc-by-4.0, other")
    ] = "unknown",
    public: Annotated[bool, typer.Option("--public", help="Let everybody see it [default: only you]")] = False,
) -> None:
    """Publish a model on the Hugging Face hub: weights, configuration and card in one commit.

    A model that is there already is replaced, and stays as visible as it is.
    """
    import dmc

    print(one_line(dmc.push(model, repo, license=license, public=public)))
    print(one_line(f"  load it with hf-hub:{repo}"))
