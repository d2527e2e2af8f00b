"""The server: a socket, the endpoint, the page, and an end without leftovers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dmc.api import Given, load
from dmc.errors import DmcError, reason_of
from dmc.extras import require_extra
from dmc.serving.config import ServeConfig
from dmc.serving.examples import as_files
from dmc.serving.panel import Panel

PATIENCE = 2  # seconds that open connections have when the server ends


class Server:
    """Models that are ready to be asked, at an address that is taken."""

    def __init__(self, app: Any, listening: socket.socket) -> None:
        import uvicorn

        self.listening = listening
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=PATIENCE)
        self.server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.listening.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Serve until a signal comes, which is raised again at the end."""
        self.server.run(sockets=[self.listening])


@contextmanager
def serving(
    models: Sequence[Given], config: ServeConfig, settings: Mapping[str, Any], examples: Path | None = None
) -> Iterator[Server]:
    """Take the port, load the models and prepare their page; `settings` are those of `dmc.predict`.

    Uploads and examples are in a temporary folder, which goes when the server ends. `examples` is a folder of images;
    None: a few shapes are drawn.
    """
    require_extra("serve", "gradio")
    with listening(config.host, config.port) as taken, TemporaryDirectory(prefix="dmc-serve-") as scratch:
        panel = Panel([load(model) for model in models], settings)
        files = as_files(examples, Path(scratch) / "examples", config.max_bytes)
        os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": scratch}  # read when it is imported
        from dmc.serving.app import application

        yield Server(application(panel, files, config), taken)


def listening(host: str, port: int) -> socket.socket:
    """Take a port; refuse one that is taken, and a host that is not this machine's."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family)
    except (OSError, UnicodeError) as error:
        why = reason_of(error).partition(" (while")[0]  # the address again
        raise DmcError(f"cannot listen on {host}, port {port}: {why}; choose another host or port") from None
