"""The settings of a server. This file imports nothing slow: the command line reads it to show its help."""

from __future__ import annotations

from dmc.settings import Config, option


class ServeConfig(Config):
    """Where a server listens, and what it accepts."""

    host: str = option("127.0.0.1", "Address to listen on; others can reach the page if it is not this machine's own")
    port: int = option(7860, "Port to listen on; 0: any that is free", ge=0, le=65535)
    max_megabytes: float = option(32.0, "Largest image to accept, in MB", gt=0, le=256)
    max_rate: float = option(10.0, "Requests to accept in a second; others are asked to wait", gt=0, le=1e6)

    @property
    def max_bytes(self) -> int:
        return int(self.max_megabytes * 1e6)
