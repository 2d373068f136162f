"""Dashboards in headless Chromium (Debian's package; another one by SPROCKETMQ_CHROMIUM). `make browser` runs these tests.

``page`` is a browser tab at desktop width that fails its test for any error on the console; ``open_page`` and ``open_phone`` make
others. ``dashboard`` shows ``cluster``, which is empty; ``dashboards`` makes more of them. All of it ends with its test or module.
``shown`` is a dashboard over a cluster that has something for every page.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.browser.populated import Populated, populated

from sprocketmq.embedded import LocalCluster
from sprocketmq.net.loops import LoopThread
from sprocketmq.web.server import DashboardServer
from sprocketmq.web.target import ClusterTarget

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 375, "height": 780}
HERE = Path(__file__).parent
# A machine may be busy with much else.
PATIENCE_MS = 60_000

expect.set_options(timeout=PATIENCE_MS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


def chromium() -> str | None:
    return os.environ.get("SPROCKETMQ_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("there is no Chromium: install Debian's package chromium")
        pytest.skip("there is no Chromium: install Debian's package chromium, or set SPROCKETMQ_CHROMIUM")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        running = playwright.chromium.launch(executable_path=path, args=[*arguments, "--disable-dev-shm-usage"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    """The thread in which dashboards run."""
    thread = LoopThread("dashboards").start()
    yield thread
    thread.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture(scope="session")
def shown() -> Iterator[Populated]:
    """A dashboard whose pages are all filled, shared by all tests: it is looked at, and little is changed."""
    thread = LoopThread("filled dashboard").start()
    with populated(thread) as running:
        yield running
    thread.stop()


@pytest.fixture(scope="module")
def secured_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(secure=True) as running:
        yield running


@pytest.fixture(scope="module")
def dashboards(loop) -> Iterator[Callable[..., str]]:
    """``dashboards(target, **options)`` starts a dashboard and returns its address."""
    with ExitStack() as stack:

        def start(target: ClusterTarget, **options) -> str:
            async def make() -> DashboardServer:
                server = DashboardServer(target, **options)
                await server.start()
                return server

            server = loop.run(make)
            stack.callback(lambda: loop.run(server.stop))
            return server.url

        yield start


@pytest.fixture(scope="module")
def dashboard(cluster, dashboards) -> str:
    """The address of a dashboard over ``cluster``."""
    return dashboards(ClusterTarget(cluster.namesrv))


@pytest.fixture(scope="module")
def secured_dashboard(secured_cluster, dashboards) -> str:
    """The address of a dashboard with logins."""
    return dashboards(ClusterTarget(secured_cluster.namesrv, secure=secured_cluster.secure))


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., Page]]:
    """``open_page(**context)`` opens a tab; the test fails when its console has an error that is not in the tab's list ``expected``."""
    with ExitStack() as stack:
        problems: list[str] = []

        def start(**options) -> Page:
            options = {"viewport": DESKTOP, "locale": "en-US", **options}
            context = stack.enter_context(browser.new_context(**options))
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.on("pageerror", lambda error: problems.append(f"{page.url}: {error}"))
            page.on("console", lambda message: message.type == "error" and problems.append(f"{page.url}: {message.text}"))
            page.problems = problems
            return page

        yield start
        assert problems == [], "errors on the console"


@pytest.fixture
def open_phone(open_page) -> Callable[..., Page]:
    """The same at the width of a phone."""
    return lambda **options: open_page(viewport=PHONE, has_touch=True, **options)


@pytest.fixture
def page(open_page) -> Page:
    return open_page()
