"""The page Overview over an hour of samples: the charts of all brokers together, a line for each broker, and its first seconds."""

import re

from playwright.sync_api import expect

HOUR, DAY = 60, 24 * 60
# The points of the line in a picture: [[x, y], ...] in its own units, 300 wide.
POINTS = (
    """picture => picture.querySelector("path.line").getAttribute("d").slice(1).split("L").map((pair) => pair.split(",").map(Number))"""
)


def test_the_charts_show_the_last_hour(page, shown):
    page.goto(shown.address("overview"))
    for title in ("Messages in", "Messages out"):
        card = page.locator(".card", has_text=title)
        expect(card.get_by_role("img", name=re.compile(title))).to_be_visible()
        points = card.get_by_role("img").evaluate(POINTS)
        assert len(points) >= HOUR - 1
        assert points[0][0] < 10
        assert points[-1][0] > 290
        assert len({y for _, y in points}) > 10
        begin, middle, end = (minutes(text) for text in card.locator(".axis span").all_inner_texts())
        assert (end - begin) % DAY in (HOUR - 1, HOUR)
        assert (middle - begin) % DAY in (HOUR / 2 - 1, HOUR / 2)
        expect(card.locator(".note")).to_have_text(re.compile(r"^peak [\d.]+/s$"))


def minutes(clock):
    hours, minute = clock.split(":")
    return 60 * int(hours) + int(minute)


def test_a_chart_tells_the_rate_under_the_pointer_also_when_it_is_drawn_anew(page, shown):
    page.goto(shown.address("overview"))
    card = page.locator(".card", has_text="Messages in")
    rate = re.compile(r"^\d\d:\d\d:\d\d +[\d.]+/s$")
    card.get_by_role("img").hover()
    expect(card.locator(".tip")).to_have_text(rate)
    card.locator(".tip").evaluate("tip => tip.classList.add('earlier')")
    expect(card.locator(".tip:not(.earlier)")).to_have_text(rate)
    page.mouse.move(0, 0)
    expect(card.locator(".tip")).to_be_hidden()


def test_each_broker_has_its_lines(page, shown):
    page.goto(shown.address("overview"))
    master = page.get_by_role("row", name=re.compile("broker-a.*Master"))
    expect(master.locator("svg.spark")).to_have_count(2)
    for line in master.locator("svg.spark").all():
        points = line.evaluate(POINTS)
        assert len(points) >= HOUR - 1
        assert len({y for _, y in points}) > 10
    # Nobody sends to a slave.
    flat = page.get_by_role("row", name=re.compile("broker-a #1.*Slave")).locator("svg.spark").first.evaluate(POINTS)
    assert len({y for _, y in flat}) == 1


def test_the_first_samples_are_at_the_right_end_and_not_stretched_over_the_hour(page, dashboard):
    page.goto(dashboard)
    spark = page.get_by_role("row", name=re.compile("broker-a.*Master")).locator("svg.spark").first
    expect(spark.locator("path.line")).to_have_attribute("d", re.compile("L.*L"))
    points = spark.evaluate(POINTS)
    assert points[0][0] > 200
    assert points[-1][0] == 300
