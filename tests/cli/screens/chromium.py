"""A real Chromium without a window, driven through the DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BINARY = next((path for name in NAMES if (path := shutil.which(name))), None)
PATIENCE_S = 120  # for a browser that hangs; the tests themselves take a second
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Page:
    """A page, and all that went wrong in it: ``complaints`` of scripts and of the policy, and
    ``requests`` to anywhere but the page itself."""

    def __init__(self, send: Any, receive: Any) -> None:
        self._send, self._receive, self._next, self._session = send, receive, 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """A command of the protocol, and its result."""
        self._next += 1
        about = {"sessionId": self._session} if self._session else {}
        self._send({"id": self._next, "method": method, "params": params, **about})
        while True:
            message = self._receive()
            if message.get("id") == self._next:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def wait_for(self, method: str) -> None:
        """Let the page go on until this event comes."""
        while True:
            message = self._receive()
            self._note(message)
            if message.get("method") == method:
                return

    def _note(self, message: Any) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"]))
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"dialog: {params['message']}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def open(self, path: Path, anchor: str = "") -> None:
        """Load a file."""
        self.call("Page.navigate", url=f"{path.as_uri()}{anchor}")
        self.wait_for("Page.loadEventFired")
        self.settle()

    def settle(self) -> None:
        """Until what was asked for is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of an expression, waited for if it is a promise."""
        done = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def size(self, width: int, height: int, dark: bool = False) -> None:
        """The window, and whether its user likes it dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.settle()

    def press(self, key: str) -> None:
        """A key, as a person types it."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def write(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A movement, press or turn of the mouse."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """A click."""
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def screenshot(self, path: Path) -> None:
        """What is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def page(binary: str) -> Iterator[Page]:
    """A page in a browser of its own."""
    to_read, to_write = os.pipe(), os.pipe()  # the browser reads from 3 and writes to 4

    def place() -> None:
        first, second = os.dup(to_read[0]), os.dup(to_write[1])
        os.dup2(first, 3)
        os.dup2(second, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = subprocess.Popen(
            [binary, *FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(3, 4),
            preexec_fn=place,  # noqa: PLW1509 - two duplications, nothing else
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read[0])
        os.close(to_write[1])
        with os.fdopen(to_read[1], "wb", 0) as out, os.fdopen(to_write[0], "rb") as source:

            def send(message: Any) -> None:
                out.write(json.dumps(message).encode() + b"\0")

            def receive() -> Any:
                found = bytearray()
                while (char := source.read(1)) != b"\0":
                    assert char, "the browser has ended"
                    found += char
                return json.loads(found)

            try:
                yield Page(send, receive)
            finally:
                browser.kill()
                browser.wait()
