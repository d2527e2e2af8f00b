"""Downloads by other libraries' clients, without their chatter, and without waiting for a network that is not there."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dmc.errors import DmcError, first_line

HUB = "hf-hub:"  # begins the name of a model on the hub
INSTEAD = "set `weights` to a file of them, or to random"  # of ImageNet weights that cannot be had


@contextmanager
def downloading(what: str, hint: str = "") -> Iterator[None]:
    """Surround a block that gets `what` from the hub, itself or through timm; any failure becomes a one-line error.

    For each file, the client tries a host that it cannot reach for half a minute. Here the host is tried once; if it
    cannot be reached, the client uses what was downloaded before.
    """
    from huggingface_hub import constants

    asked_for = constants.HF_HUB_OFFLINE
    away = not asked_for and not reachable()
    constants.HF_HUB_OFFLINE = asked_for or away
    try:
        with quiet("timm"), quiet("huggingface_hub"):
            yield
    except DmcError:
        raise
    except Exception as error:  # the clients raise a dozen unrelated kinds
        reason = f"no connection to {constants.ENDPOINT}" if away and isinstance(error, OSError) else first_line(error)
        raise DmcError(f"cannot get {what}: {reason}{hint}") from None
    finally:
        constants.HF_HUB_OFFLINE = asked_for


def download(repo: str, files: Sequence[str]) -> Path:
    """Get these files of a model on the hub, as far as it has them; give the folder that they are in."""
    from huggingface_hub import snapshot_download

    with downloading(f"{HUB}{repo}"):
        return Path(snapshot_download(repo, allow_patterns=list(files)))


def reachable() -> bool:
    """Try to reach the hub, by the client's own session, which knows of proxies and mirrors."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception:  # no name server, no route, no proxy, a certificate that does not fit
        return False
    return True


@contextmanager
def quiet(library: str) -> Iterator[None]:
    """Let a library log nothing but errors while a block runs."""
    logger = logging.getLogger(library)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
