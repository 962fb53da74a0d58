"""A real browser and a real service for the page's tests.

Chromium is driven by its DevTools protocol over a pair of pipes, so that no further package is needed; the tests skip
where there is no browser. ``CHROMIUM`` names one that is not on the path.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from ..conftest import Live

if TYPE_CHECKING:
    from starlette.types import ASGIApp

KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


class Chromium:
    """A browser; :meth:`page` opens a page of its own profile."""

    def __init__(self, program: str, profile: Path):
        ours, theirs = os.pipe(), os.pipe()  # commands to the browser, and its answers

        def pipes() -> None:
            # The browser reads commands from 3 and writes answers to 4.
            kept = os.dup(ours[0]), os.dup(theirs[1])
            for number, own in zip((3, 4), kept, strict=True):
                os.dup2(own, number)
                os.set_inheritable(number, True)

        options = (
            "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --mute-audio "
            "--no-first-run --disable-background-networking --disable-component-update --disable-sync "
            "--remote-debugging-pipe"
        )
        self._process = subprocess.Popen(
            [program, *options.split(), f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._commands, self._answers = ours[1], theirs[0]
        self._answered = selectors.DefaultSelector()  # select() takes no descriptor above 1,023
        self._answered.register(self._answers, selectors.EVENT_READ)
        self._number = 0
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Do one thing, and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive(120)
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self.events.append(found)

    def _receive(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            if not self._answered.select(max(0.0, end - time.monotonic())):
                raise TimeoutError("the browser does not answer")
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def page(self, width: int = 1280, height: int = 800, *, dark: bool = False) -> Page:
        """An empty page, as if of a browser that was never used."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        return page

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._commands)
        os.close(self._answers)


class Page:
    """A page, as a user has it: look, type, press keys, click."""

    def __init__(self, browser: Chromium, session: str, context: str):
        self._browser, self._session, self._context = browser, session, context

    def close(self) -> None:
        self._browser.send("Target.disposeBrowserContext", browserContextId=self._context)

    def send(self, method: str, **params: Any) -> Any:
        return self._browser.send(method, self._session, **params)

    def open(self, address: str) -> None:
        self.send("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 120.0) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while True:
            # While the page changes there may be nothing to ask yet.
            found = self.run(f"(() => {{ try {{ return Boolean({script}) }} catch {{ return null }} }})()")
            if found:
                return found
            assert time.monotonic() < end, f"not true in time: {script}\n{self.text('body')[:2000]}"
            time.sleep(0.02)

    def loaded(self, more: str = "true") -> None:
        """Wait until there are results, and more is true."""
        ready = "document.querySelectorAll('.card:not(.ghost)').length && document.querySelector('#progress').hidden"
        self.until(f"{ready} && {more}")

    def state(self) -> dict[str, str]:
        """What the page's address holds."""
        return dict(parse_qsl(urlsplit(self.run("location.href")).query))

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def texts(self, selector: str) -> list[str]:
        return list(
            self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.innerText.trim())")
        )

    def click(self, selector: str) -> None:
        x, y = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center'});"
            "const at = one.getBoundingClientRect(); return [at.x + at.width / 2, at.y + at.height / 2] })()"
        )
        self.point(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def press(self, key: str) -> None:
        about = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS.get(key, ord(key[0].upper()))}
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def choose(self, label: str, value: str) -> None:
        """Choose of a select."""
        name = json.dumps(f'select[aria-label="{label}"]')
        self.run(
            f"(() => {{ const one = document.querySelector({name}); one.value = {json.dumps(value)};"
            "one.dispatchEvent(new Event('change')) })()"
        )

    def shot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def events(self, method: str) -> list[dict[str, Any]]:
        """What has happened, so far as it was told."""
        self.run("0")
        return [
            one["params"]
            for one in self._browser.events
            if one.get("method") == method and one.get("sessionId") == self._session
        ]


DOCUMENTS = {
    "bees": "Bees keep the hive warm in winter: the cluster shivers.",
    "emoji": "🐝🐝 Bees, and 🐝 honey of the bees.",
    "html": "A hive is <b id='injected'>bold</b><script>window.injected = 1</script> & bees & winter.",
    "bogue": "The bogue is a sea fish; a bogus bee is not. Insouciantly, bees winter.",
    "long": "The river runs to the sea. " * 60 + "In winter the bees keep warm. " + "The city has people. " * 40,
    **{f"more{n:02}": f"Bees and honey number {n} of the garden" + " and the winter" * (n % 3) for n in range(20)},
}


class Site(Live):
    """A service with answers of its own, ``faults``, by path: (status, headers, body)."""

    def __init__(self, service: Any, **options: Any):
        self.faults: dict[str, tuple[int, dict[str, str], Any]] = {}
        self.asked: list[str] = []
        super().__init__(service, self._faulty, **options)
        self.address = f"http://127.0.0.1:{self.port}/"

    def _faulty(self, app: ASGIApp) -> ASGIApp:
        async def answer(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
            self.asked.append(scope.get("path", ""))
            if scope["type"] != "http" or scope["path"] not in self.faults:
                await app(scope, receive, send)
                return
            status, headers, body = self.faults[scope["path"]]
            lines = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": lines})
            await send({"type": "http.response.body", "body": json.dumps(body).encode()})

        return answer

    def at(self, **state: Any) -> str:
        """The page's address in some state."""
        return f"{self.address}?{urlencode(state)}"

    def stop(self) -> None:
        self.server.force_exit = True  # browsers keep connections open
        super().stop()

    def answer(self, path: str, **body: Any) -> Any:
        """What the service says."""
        status, answer, _ = self.post(path, body)
        assert status == 200, answer
        return answer


@pytest.fixture(scope="session")
def page_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rankwell.corpus.records import Document
    from rankwell.retrieve.index import Index

    folder = tmp_path_factory.mktemp("page") / "garden"
    Index.build((Document(docid, text) for docid, text in DOCUMENTS.items()), folder)
    return folder


@pytest.fixture(scope="session")
def start_site(page_index: Path) -> Iterator[Callable[..., Site]]:
    """Starts a service of the index and some models."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    from rankwell.serve.service import Service
    from rankwell.serve.state import Sources

    started: list[Site] = []

    def start(*models: Path, search: dict[str, Any] | None = None, index: Path = page_index, **options: Any) -> Site:
        sources = Sources(index, tuple(map(str, models)), search=search or {})
        started.append(Site(Service(sources), **options))
        return started[-1]

    yield start
    for site in started:
        site.stop()


@pytest.fixture(scope="session")
def whole_site(
    start_site: Callable[..., Site], tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    """Two models: the tiny one, and one of its shape with other weights."""
    from safetensors.numpy import load_file, save_file

    other = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(tiny_checkpoint, other)
    weights = load_file(other / "model.safetensors")
    save_file({n: w[..., ::-1].copy() for n, w in weights.items()}, other / "model.safetensors", {"format": "pt"})
    return start_site(tiny_checkpoint, other)


@pytest.fixture
def site(whole_site: Site) -> Iterator[Site]:
    yield whole_site
    whole_site.faults.clear()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium here; install one, or name it in CHROMIUM")
    browser = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def new_page(chromium: Chromium) -> Iterator[Callable[..., Page]]:
    """Opens pages; in the end none of them may have failed silently or asked another host for anything."""
    opened: list[Page] = []

    def open_page(address: str, width: int = 1280, height: int = 800, *, dark: bool = False) -> Page:
        opened.append(chromium.page(width, height, dark=dark))
        opened[-1].open(address)
        return opened[-1]

    yield open_page
    for page in opened:
        assert [one["exceptionDetails"] for one in page.events("Runtime.exceptionThrown")] == []
        logged = [one["entry"] for one in page.events("Log.entryAdded")]
        # A refused request is logged by the browser itself; what breaks the content security policy must not be there.
        assert [one for one in logged if one["source"] != "network" and one["level"] in ("warning", "error")] == []
        asked = {one["request"]["url"] for one in page.events("Network.requestWillBeSent")}
        assert {url for url in asked if not url.startswith(("http://127.0.0.1:", "data:"))} == set()
        page.close()


@pytest.fixture
def searched(new_page: Callable[..., Page]) -> Callable[..., Page]:
    """Opens pages with results."""

    def search(site: Site, q: str = "how do bees keep warm in winter", width: int = 1280, **state: Any) -> Page:
        page = new_page(site.at(q=q, **state), width)
        page.loaded()
        return page

    return search
