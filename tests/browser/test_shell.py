"""The frame around all pages: navigation, themes, languages, logins, and a broker that dies while a page is open."""

import re

import pytest
from playwright.sync_api import expect
from tests import ports
from tests.browser.looks import looks_right, settled

from sprocketmq.client.credentials import read_credentials
from sprocketmq.embedded import LocalCluster
from sprocketmq.web.pages import PAGES
from sprocketmq.web.target import ClusterTarget


def test_overview_shows_the_broker_and_goes_on_live(page, dashboard):
    page.goto(dashboard)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("broker-a.*Master"))).to_be_visible()
    expect(page.locator(".live")).to_have_text("Live")


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_every_empty_page_fits_a_phone_and_has_enough_contrast(open_phone, dashboard, one):
    page = open_phone()
    page.goto(f"{dashboard}{one.path}")
    settled(page)
    looks_right(page)


def test_pages_are_reached_by_keyboard(page, dashboard):
    page.goto(dashboard)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.locator("nav a").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_the_menu_of_a_phone_opens_and_closes(open_phone, dashboard):
    page = open_phone()
    page.goto(dashboard)
    expect(page.get_by_role("navigation")).not_to_be_visible()
    page.get_by_role("button", name="Menu").click()
    expect(page.get_by_role("navigation")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("navigation")).not_to_be_visible()


def test_themes_are_switched_and_kept(page, dashboard):
    page.goto(dashboard)
    button = page.get_by_role("button", name=re.compile("Colours"))
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    button.click()
    button.click()
    expect(button).to_contain_text("Dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_languages_are_switched_and_kept(page, dashboard):
    page.goto(dashboard)
    page.get_by_role("button", name="中文").click()
    expect(page.get_by_role("heading", name="概览")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="概览")).to_be_visible()
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")


def test_a_login_is_asked_for_and_ends(page, secured_cluster, secured_dashboard):
    user = read_credentials(secured_cluster.secure / "credentials.json")
    page.goto(secured_dashboard)
    page.get_by_label("Access key").fill(user.access_key)
    page.get_by_label("Secret key").fill("not it")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("does not accept")
    page.get_by_label("Secret key").fill(user.secret_key.reveal())
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("row", name=re.compile("broker-a.*Master"))).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Access key")).to_be_visible()
    # The browser itself reports the answer 401 to the wrong login.
    assert all("401" in problem for problem in page.problems)
    page.problems.clear()


def test_a_broker_that_dies_while_a_page_is_open_is_an_alarm_until_it_is_back(page, dashboards):
    with LocalCluster(brokers=2) as cluster:
        page.goto(dashboards(ClusterTarget(cluster.namesrv)))
        expect(page.get_by_role("row", name=re.compile("broker-b.*Master"))).to_be_visible()
        cluster.kill_broker("broker-b")
        expect(page.get_by_role("row", name=re.compile("broker-b.*(Away|Not registered)"))).to_be_visible()
        expect(page.get_by_role("alert").filter(has_text=re.compile("broker-b at 127.0.0.1:.* does not answer: "))).to_be_visible()
        expect(page.get_by_text("No alarms")).to_have_count(0)
        expect(page.get_by_role("row", name=re.compile("broker-a.*Master"))).to_be_visible()
        cluster.start_broker("broker-b")
        expect(page.get_by_role("row", name=re.compile("broker-b.*Master"))).to_be_visible()
        expect(page.get_by_text("No alarms. Brokers that answer: 2.")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)


def test_a_cluster_that_is_away_is_a_sentence(page, dashboards):
    with ports.hold() as held:
        page.goto(dashboards(ClusterTarget(ports.address_of(held))))
        expect(page.get_by_role("alert").first).to_contain_text("no nameserver answered")


def test_names_from_the_cluster_are_text(page, dashboard):
    hostile = "<img src=x onerror=alert(1)>"

    def answer(route):
        told = route.fetch().json()
        for broker in told["cluster"]["brokers"]:
            broker.update(dict.fromkeys(("name", "cluster", "address", "role", "version"), hostile))
        told["cluster"]["alarms"] = [{"kind": "away", "level": "bad", "values": {"broker": hostile, "address": hostile, "reason": hostile}}]
        route.fulfill(json=told)

    page.route("**/api/overview", answer)
    page.route("**/api/live", lambda route: route.abort())
    page.on("dialog", lambda dialog: page.problems.append(dialog.message))
    page.goto(dashboard)
    expect(page.get_by_role("row").get_by_text(hostile).first).to_be_visible()
    expect(page.get_by_role("alert").first).to_contain_text(hostile)
    expect(page.locator("main img")).to_have_count(0)
    page.problems[:] = [problem for problem in page.problems if "api/live" not in problem and "ERR_FAILED" not in problem]
