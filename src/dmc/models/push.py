"""Publish a model on the hub by its conventions: the model's own files and a complete card, in one commit."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dmc.errors import DmcError, first_line
from dmc.models.hub import quiet, reachable
from dmc.models.model import Model

UNKNOWN = "unknown"  # the hub's word for a license that nobody has told
NAME = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}")
LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}")
FOLDERS = re.compile(r"(?<![\w:/.])/(?:[^/\s]+/)+")  # that an absolute path begins with


def require_hub(repo: str, license: str) -> None:
    """Refuse, before anything is loaded, what could not be sent: a wrong name, no token, no network."""
    from huggingface_hub import constants, get_token

    if not NAME.fullmatch(repo):
        raise DmcError(f"{repo!r} is no name on the hub: give OWNER/NAME, such as me/merged")
    if not LICENSE.fullmatch(license):
        raise DmcError(f"{license!r} is no license of the hub's: give its short name, such as apache-2.0 or mit")
    if get_token() is None:
        raise DmcError(f"cannot send to {repo}: there is no token; log in with `hf auth login`, or set HF_TOKEN")
    if constants.HF_HUB_OFFLINE or not reachable():
        raise DmcError(f"cannot send to {repo}: no connection to {constants.ENDPOINT}; nothing was sent")


def push(model: Model, repo: str, license: str = UNKNOWN, public: bool = False) -> str:
    """Send a model to OWNER/NAME, which is made if it is not there; give its address."""
    from huggingface_hub import HfApi

    with TemporaryDirectory(prefix="dmc-push-") as place, quiet("huggingface_hub"):
        folder = published(model).save(place, license=license, hub_name=repo)
        return _sent(HfApi(library_name="deep-model-consolidation"), folder, repo, public)


def published(model: Model) -> Model:
    """Copy a model with what its provenance may tell others: of paths on this machine only the last part."""
    twin = model.with_module(model.module)
    twin.provenance = {key: _without_folders(value) for key, value in model.provenance.items()}
    return twin


def _without_folders(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_folders(line) for line in value]
    return FOLDERS.sub("", value) if isinstance(value, str) else value


def _sent(api: Any, folder: Path, repo: str, public: bool) -> str:
    """Make the repository if there is none, and fill it in one commit; if that fails, leave no empty one behind."""
    made = False
    try:
        if not api.repo_exists(repo):
            api.create_repo(repo, private=not public)
            made = True
        commit = api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload a model with dmc")
    except BaseException as error:
        left = _removed(api, repo) if made else ""
        if not isinstance(error, Exception):  # interrupted
            raise
        raise DmcError(f"cannot send to {repo}: {first_line(error)}; nothing was sent{left}") from None
    return str(commit.repo_url)


def _removed(api: Any, repo: str) -> str:
    """Remove the empty repository; say so if that fails."""
    try:
        api.delete_repo(repo, missing_ok=True)
    except Exception:  # mostly for the reason that the commit failed for
        return ", but an empty repository is left there"
    return ""
