"""The application: the endpoint and the page behind one set of limits."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import gradio as gr
from fastapi import FastAPI

from dmc.serving.config import ServeConfig
from dmc.serving.endpoint import add_endpoint
from dmc.serving.limits import Limits
from dmc.serving.page import TITLE, page
from dmc.serving.panel import Panel


def application(panel: Panel, examples: Sequence[Path], config: ServeConfig) -> FastAPI:
    """Put the endpoint and the page together. FastAPI's own pages are left out: they load scripts from elsewhere."""
    from dmc import __version__

    app = FastAPI(title=TITLE, version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(Limits, max_bytes=config.max_bytes, max_rate=config.max_rate)
    add_endpoint(app, panel)
    gr.mount_gradio_app(
        app,
        page(panel, examples, config.max_bytes),
        path="/",
        max_file_size=config.max_bytes,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        css=files("dmc.serving").joinpath("page.css").read_text(encoding="utf-8"),
    )
    return app
