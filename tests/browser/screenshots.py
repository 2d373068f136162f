"""``make screenshots``: pictures of all pages, in both themes and at the width of a phone, for docs/images/dashboard.

Names as arguments make those pictures only. The button for Chinese needs a font that has its characters, such as Debian's fonts-wqy-microhei.
"""

import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Route, expect, sync_playwright
from tests.browser.conftest import DESKTOP, PHONE, chromium
from tests.browser.populated import NAMES, populated

from sprocketmq.net.loops import LoopThread

OUT = Path(__file__).parents[2] / "docs/images/dashboard"
COLORS = 256
# Of a phone's picture, which shows the whole page.
MAX_HEIGHT = 1600
KINDS = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "has_touch": True},
}


def an_hour_apart(route: Route) -> None:
    """Put the reports of a query a minute apart, which all came within seconds."""
    told = route.fetch().json()
    for query in told["queries"]:
        last = len(query["history"]) - 1
        query["history"] = [[at_ms - (last - number) * 60_000, lag] for number, (at_ms, lag) in enumerate(query["history"])][-60:]
    route.fulfill(json=told)


def shoot(browser: Browser, address: str, name: str, kind: str) -> None:
    """Write one picture, with the palette that its colours need."""
    context = browser.new_context(locale="en-US", device_scale_factor=1, **KINDS[kind])
    page = context.new_page()
    page.route("**/api/spark*", an_hour_apart)
    page.goto(address)
    page.locator("h1").first.wait_for()
    expect(page.locator(".skeleton")).to_have_count(0)
    page.wait_for_timeout(700)
    path = OUT / f"{name}-{kind}.png"
    page.screenshot(path=path, full_page=kind == "phone")
    context.close()
    with Image.open(path) as image:
        image.crop((0, 0, image.width, min(image.height, MAX_HEIGHT))).convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE).save(
            path, optimize=True
        )


def main(names: list[str]) -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    loop = LoopThread("dashboard").start()
    with populated(loop) as shown, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name in names or NAMES:
            for kind in KINDS:
                shoot(browser, shown.address(name), name, kind)
        browser.close()
    loop.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
