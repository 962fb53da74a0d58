"""A real browser and a real service for the page's tests: the system's Chromium, driven by Playwright."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from ...conftest import find_chromium
from ..conftest import Live

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage
    from starlette.types import ASGIApp

    from rankwell.serve.search_log import LogOptions

SECONDS = 120


class Page:
    """A page of a browser that was never used before, as a user has it: look, type, press keys, click."""

    def __init__(self, browser: Browser, width: int, height: int, *, dark: bool):
        size = {"width": width, "height": height}
        self._context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
        self._page = self._context.new_page()
        self._page.set_default_timeout(1000 * SECONDS)
        self.close, self.type = self._context.close, self._page.keyboard.insert_text
        self.press, self.point = self._page.keyboard.press, self._page.mouse.move
        self.go_offline, self.add_script = self._context.set_offline, self._page.add_init_script
        self.send = self._context.new_cdp_session(self._page).send
        self.complaints: list[str] = []
        self.asked: set[str] = set()
        self._page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self._page.on("console", self._note)
        self._page.on("request", lambda request: self.asked.add(request.url))

    def _note(self, message: ConsoleMessage) -> None:
        # A refused request is logged by the browser itself; what breaks the content security policy must not be there.
        if message.type in ("warning", "error") and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def open(self, address: str) -> None:
        self._page.goto(address, wait_until="commit")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self._page.evaluate(script)

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        # The page's security policy forbids Playwright's own wait_for_function, which evaluates in the page's time.
        end = time.monotonic() + SECONDS
        while not self.run(f"(() => {{ try {{ return Boolean({script}) }} catch {{ return null }} }})()"):
            assert time.monotonic() < end, f"not true in time: {script}\n{self.text('body')[:2000]}"
            self._page.wait_for_timeout(20)

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
        return [text.strip() for text in self._page.locator(selector).all_inner_texts()]

    def click(self, selector: str) -> None:
        self._page.locator(selector).first.click()

    def choose(self, label: str, value: str) -> None:
        """Choose of a select."""
        self._page.get_by_label(label, exact=True).select_option(value)

    def shot(self, path: Path) -> None:
        self._page.screenshot(path=path)


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
def program() -> str:
    """The browser. Where there is none, no service is started for it."""
    if (found := find_chromium()) is None:
        pytest.skip("there is no Chromium here; install one, or name it in CHROMIUM")
    return found


@pytest.fixture(scope="session")
def page_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rankwell.corpus.records import Document
    from rankwell.retrieve.index import Index

    folder = tmp_path_factory.mktemp("page") / "garden"
    Index.build((Document(docid, text) for docid, text in DOCUMENTS.items()), folder)
    return folder


@pytest.fixture(scope="session")
def start_site(program: str, page_index: Path) -> Iterator[Callable[..., Site]]:
    """Starts a service of the index and some models."""
    from rankwell.serve.service import Service
    from rankwell.serve.state import Sources

    started: list[Site] = []

    def start(
        *models: Path,
        search: dict[str, Any] | None = None,
        index: Path = page_index,
        reranks: bool = True,
        log: LogOptions | None = None,
        **options: Any,
    ) -> Site:
        service = Service(Sources(index, tuple(map(str, models)), search=search or {}, reranks=reranks), log=log)
        quick = {name: replace(model, warm_up=(10**6, 0.0)) for name, model in service.state.models.items()}
        service.holder.state = replace(service.state, models=quick)  # the usual depth, however busy the machine is
        started.append(Site(service, **options))
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


# Playwright keeps an event loop running in the thread of the tests, so others, which start their own, wait for its end.
@pytest.fixture(scope="module")
def chromium(program: str) -> Iterator[Browser]:
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def new_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages; in the end none of them may have failed silently or asked another host for anything."""
    opened: list[Page] = []

    def open_page(address: str, width: int = 1280, height: int = 800, *, dark: bool = False) -> Page:
        opened.append(Page(chromium, width, height, dark=dark))
        opened[-1].open(address)
        return opened[-1]

    yield open_page
    for page in opened:
        page.close()
        assert page.complaints == []
        assert {url for url in page.asked if not url.startswith(("http://127.0.0.1:", "data:"))} == set()


@pytest.fixture
def searched(new_page: Callable[..., Page]) -> Callable[..., Page]:
    """Opens pages with results."""

    def search(site: Site, q: str = "how do bees keep warm in winter", width: int = 1280, **state: Any) -> Page:
        page = new_page(site.at(q=q, **state), width)
        page.loaded()
        return page

    return search
