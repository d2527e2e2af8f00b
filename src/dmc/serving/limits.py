"""What a server accepts: bodies of a limited size, at a limited rate, a few at a time."""

from __future__ import annotations

import math
from time import monotonic

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dmc.data.untrusted import MOST_ENCODED

FORM = 2**16  # bytes that a form may have around its image
MOST_AT_ONCE = 16  # requests: one is worked on, the others wait
# Only what the server has itself. gradio's page needs its own inline scripts and styles.
POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"


class TooLargeError(Exception):
    """A body has more bytes than are accepted."""


class Bucket:
    """A token bucket: after a pause, a second's worth of requests may come at once."""

    def __init__(self, rate: float) -> None:
        self.rate, self.most = rate, max(1.0, rate)
        self.left, self.then = self.most, monotonic()

    def seconds_to_wait(self) -> float:
        """Take a token if there is one, and give 0; otherwise give the time until there is one."""
        now = monotonic()
        self.left, self.then = min(self.most, self.left + (now - self.then) * self.rate), now
        if self.left < 1:
            return (1 - self.left) / self.rate
        self.left -= 1
        return 0.0


class Limits:
    """ASGI middleware that refuses posts which are too large (413) or too many (429), each with one line of JSON."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_rate: float) -> None:
        self.app, self.max_bytes, self.bucket, self.at_once = app, max_bytes, Bucket(max_rate), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, _only_from_here(send))
            return
        wait = self.bucket.seconds_to_wait() if self.at_once < MOST_AT_ONCE else 1.0
        if wait:
            seconds = math.ceil(wait)
            said = {"detail": f"too many requests: try again in {seconds} s"}
            await JSONResponse(said, 429, {"Retry-After": str(seconds)})(scope, receive, send)
            return
        self.at_once += 1
        try:
            await self.app(scope, self._counted(scope, receive), send)
        except TooLargeError:
            await _drained(receive)
            said = {"detail": f"the image is too large: at most {self.max_bytes / 1e6:g} MB are accepted"}
            await JSONResponse(said, 413, {"Connection": "close"})(scope, receive, send)
        finally:
            self.at_once -= 1

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        """Receive a body until it is larger than it may be, or says that it will be."""
        left = self.max_bytes + FORM
        declared = dict(scope["headers"]).get(b"content-length", b"")

        async def counted() -> Message:
            nonlocal left
            if declared.isdigit() and int(declared) > self.max_bytes + FORM:
                raise TooLargeError
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise TooLargeError
            return message

        return counted


async def _drained(receive: Receive) -> None:
    """Read what is left of a body, within limits: a client that is cut off while it sends does not see the answer."""
    left = MOST_ENCODED
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if not message.get("more_body"):
            return


def _only_from_here(send: Send) -> Send:
    """Let the browser load nothing from elsewhere, whatever the page asks for."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"content-security-policy", POLICY)]
        await send(message)

    return sending
