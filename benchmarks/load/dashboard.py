"""Measure the dashboard over 10,000 topics and 1,000 groups: how soon its lists are there, and what an open page costs the broker.

`serve` (broker and nameserver), the dashboard and headless Chromium are processes of their own on this machine.

* Lists: from the click on *Topics* or *Groups* until the browser has painted the last row that it draws, after the page was loaded once.
  The pause before each click is longer than the dashboard keeps a list, so that every click asks the broker and the nameserver.
* Pages: processor time of `serve` in a minute with each page open, less that of a minute without the dashboard. The broker registers its
  10,000 topics twice a minute, which both have. While *Messages* follows a topic, a producer sends 50 messages/s to it, and does so in the
  minute it is compared with.

Goals: 1 s, 1 % of a core. Exits 1 when one is missed.
"""

import argparse
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.browser.conftest import DESKTOP, chromium

from benchmarks.load.rounds import report_verdicts, store_directory, verdict, wait_until_quiet
from benchmarks.load.sides import serve
from benchmarks.processor import cpu_s
from benchmarks.report import spread, write_result
from sprocketmq import Message, sync
from sprocketmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig

TOPICS, GROUPS = 10_000, 1_000
CREATED_AT_ONCE = 1_000
GOAL_LIST_S, GOAL_CORE = 1.0, 0.01
REPEATS = 5
KEPT_S = 6.0
# As many as the page shows.
SENDS_PER_S = 50
WARM_S = 10.0
DISK_BYTES = 2 << 30
PATIENCE_MS = 60_000
FOLLOWED, READ = "topic-00000", "group-0000"

# The rows of each list.
LISTS = {"topics": TOPICS, "groups": GROUPS}
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": f"/topics?topic={FOLLOWED}",
    "groups": "/groups",
    "group": f"/groups?group={READ}",
    "store": "/store",
}
FOLLOW = {"messages followed live": f"/messages?topic={FOLLOWED}&follow=1"}

# A frame that begins after the rows are elements; the one after it begins when they are painted.
CLICK = """async ({ page, rows }) => {
  const frame = () => new Promise(requestAnimationFrame);
  const drawn = () => {
    const list = document.querySelector(`main .page-${page} table[aria-rowcount="${rows + 1}"]`);
    return list !== null && list.querySelectorAll("tbody tr[data-key]").length > 0;
  };
  const began = performance.now();
  document.querySelector(`nav a[data-page="${page}"]`).click();
  while (!drawn()) await frame();
  await frame();
  await frame();
  const listed = performance.now() - began;
  while (document.querySelector("main tbody tr[data-key]").textContent.includes("…")) await frame();
  return { listed, figures: performance.now() - began };
}"""


@contextlib.contextmanager
def dashboard(namesrv: str) -> Iterator[str]:
    """Run ``sprocketmq dashboard`` on a free port while the block runs; yields its address."""
    command = [sys.executable, "-m", "sprocketmq", "dashboard", "--namesrv", namesrv, "--port", "0", "--log-level", "WARNING"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        ready = dict(word.split("=", 1) for word in process.stdout.readline().split() if "=" in word)
        yield ready["dashboard"]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@contextlib.contextmanager
def tab(browser: Browser, address: str) -> Iterator[Page]:
    """Open a page of the dashboard and wait until its table has rows."""
    context = browser.new_context(viewport=DESKTOP, locale="en-US")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    expect(page.locator("main tbody tr:not(.space)").first).to_be_visible(timeout=PATIENCE_MS)
    try:
        yield page
    finally:
        context.close()


@contextlib.contextmanager
def sends(namesrv: str) -> Iterator[None]:
    """Send SENDS_PER_S messages a second while the block runs."""
    over = threading.Event()

    def send() -> None:
        with sync.Producer("dashboard_load", namesrv=namesrv) as producer:
            began, sent = time.monotonic(), 0
            while not over.wait(max(0.0, began + sent / SENDS_PER_S - time.monotonic())):
                producer.send(Message(FOLLOWED, b'{"number": %d}' % sent, tag="load"))
                sent += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def fill(namesrv: str) -> None:
    """Create the topics and groups, and let one group have read a topic."""
    with sync.AdminClient(namesrv=namesrv) as admin:
        for first in range(0, TOPICS, CREATED_AT_ONCE):
            admin.create_topics([TopicConfig(f"topic-{number:05}", 1, 1) for number in range(first, first + CREATED_AT_ONCE)])
        admin.create_groups([SubscriptionGroupConfig(f"group-{number:04}") for number in range(GROUPS)])
        with sync.Producer("dashboard_load", namesrv=namesrv) as producer:
            producer.send_batch([Message(FOLLOWED, b"%d" % number) for number in range(1000)])
        (queue,) = admin.queues(FOLLOWED)
        admin.reset_offset(READ, queue, 0)


def list_ms(browser: Browser, namesrv: str) -> dict[str, dict[str, Any]]:
    """Return for each list the milliseconds from the click to the last drawn row, and to the figures of the rows in sight."""
    found: dict[str, dict[str, Any]] = {}
    with dashboard(namesrv) as url, tab(browser, url) as page:
        for name, rows in LISTS.items():
            first, *later = [click_ms(page, name, rows) for _ in range(REPEATS + 1)]
            found[name] = {
                "first_load_ms": round(first["listed"], 1),
                "listed_ms": spread((one["listed"] for one in later), 1),
                "figures_ms": spread((one["figures"] for one in later), 1),
            }
            medians = [found[name][part]["median"] for part in ("listed_ms", "figures_ms")]
            print(f"{name:24} first {first['listed']:.0f} ms, then {medians[0]:.0f} ms, with figures {medians[1]:.0f} ms", flush=True)
    return found


def click_ms(page: Page, name: str, rows: int) -> dict[str, float]:
    """Go to *Overview*, wait until the dashboard has forgotten its lists, and return what a click on the page ``name`` takes."""
    page.locator('nav a[data-page="overview"]').click()
    expect(page.locator("main .page-overview table.brokers")).to_be_visible(timeout=PATIENCE_MS)
    page.wait_for_timeout(KEPT_S * 1000)
    taken: dict[str, float] = page.evaluate(CLICK, {"page": name, "rows": rows})
    return taken


def core_share(pid: int, seconds: float) -> float:
    """Return the share of a core that a process takes for some seconds."""
    used, began = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - used) / (time.monotonic() - began)


def page_costs(browser: Browser, namesrv: str, pid: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return for each page the share of a core that ``serve`` takes without and with it, and the difference."""
    found: dict[str, dict[str, float]] = {}

    def measure(pages: dict[str, str]) -> None:
        time.sleep(WARM_S)
        without = core_share(pid, seconds)
        for name, address in pages.items():
            with dashboard(namesrv) as url, tab(browser, url + address):
                time.sleep(WARM_S)
                share = core_share(pid, seconds)
            found[name] = {"without": round(without, 5), "open": round(share, 5), "cost": round(share - without, 5)}
            print(f"{name:24} without {without:8.3%}   open {share:8.3%}   cost {share - without:8.3%} of a core", flush=True)

    measure(PAGES)
    with sends(namesrv):
        measure(FOLLOW)
    return found


def main() -> int:
    """Measure, write the result file, print the verdicts, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of each figure of processor time (60)")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds to wait at most for other load to end, before the lists (10)")
    parser.add_argument("--only", choices=("lists", "pages"), help="one half of it; writes no result file")
    parser.add_argument("--directory", type=Path, help="where the store goes (a temporary directory)")
    options = parser.parse_args()
    with contextlib.ExitStack() as running:
        directory = running.enter_context(store_directory(options.directory, DISK_BYTES))
        namesrv, pid = running.enter_context(serve(directory, "--log-level", "WARNING"))
        fill(namesrv)
        driver = running.enter_context(sync_playwright())
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        running.callback(browser.close)
        wait_until_quiet(options.settle)
        lists = list_ms(browser, namesrv) if options.only != "pages" else {}
        pages = page_costs(browser, namesrv, pid, options.seconds) if options.only != "lists" else {}
    verdicts = {f"{name} listed (s)": verdict(one["listed_ms"]["median"] / 1000, GOAL_LIST_S, at_most=True) for name, one in lists.items()}
    verdicts |= {f"{name} open (share of a core)": verdict(one["cost"], GOAL_CORE, at_most=True) for name, one in pages.items()}
    if options.only is None:
        setting = {"topics": TOPICS, "groups": GROUPS, "repeats": REPEATS, "measure_s": options.seconds, "sends_per_s": SENDS_PER_S}
        write_result("load-dashboard", {"setting": setting, "lists": lists, "pages": pages, "verdicts": verdicts})
    return 0 if report_verdicts(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
