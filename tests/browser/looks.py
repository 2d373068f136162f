"""How a page looks, measured in the browser: what has too little contrast, and what does not fit its width."""

import re

from playwright.sync_api import Page, expect


def settled(page: Page) -> None:
    """Wait until the page shows what it asked for."""
    expect(page.locator("h1").first).to_be_visible()
    expect(page.locator(".skeleton")).to_have_count(0)
    expect(page.locator("main .muted", has_text=re.compile("^…$"))).to_have_count(0)


def low_contrast(page: Page) -> list[str]:
    """Return the elements whose text has less contrast than WCAG 2 wants for AA."""
    found: list[str] = page.evaluate(LOW_CONTRAST)
    return found


def too_wide(page: Page) -> list[str]:
    """Return the elements that reach out of the window, and the tables, dialogs and pages that would have to be scrolled sideways."""
    found: list[str] = page.evaluate(TOO_WIDE)
    return found


# Every element with a text of its own: the ratio of its colour to the first background behind it that is not transparent.
LOW_CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => { for (let at = element; at; at = at.parentElement) { const color = rgba(getComputedStyle(at).backgroundColor); if (color[3] > 250) return color; } return [255, 255, 255]; };
  const ratio = (one, other) => { const [a, b] = [light(one), light(other)]; return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (!element.checkVisibility() || element.closest(".visually-hidden, .skip, [disabled], noscript, datalist")) continue;
    const style = getComputedStyle(element);
    const texts = [];
    if ([...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) texts.push([element.textContent, style.color]);
    if (element.matches("input, select, textarea") && element.value) texts.push([element.value, style.color]);
    if (element.placeholder) texts.push([element.placeholder, getComputedStyle(element, "::placeholder").color]);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    for (const [text, color] of texts) {
      const has = ratio(rgba(color), behind(element));
      if (has < (large ? 3 : 4.5)) found.push(`${element.tagName}.${element.className}: ${text.trim().slice(0, 40)}: ${has.toFixed(2)}`);
    }
  }
  return found;
}"""

TOO_WIDE = """() => {
  const found = [];
  const name = (element) => `${element.tagName}.${element.className}: ${element.textContent.trim().slice(0, 40)}`;
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) found.push(`the page: ${wide} of ${innerWidth}`);
  for (const box of document.querySelectorAll(".table-box, dialog")) {
    if (box.checkVisibility() && box.scrollWidth > box.clientWidth) found.push(`${name(box)}: ${box.scrollWidth} of ${box.clientWidth}`);
  }
  for (const element of document.querySelectorAll("main *, dialog *, .toasts *")) {
    if (!element.checkVisibility() || element.closest("pre, td.clip, .tail, .visually-hidden, svg, datalist")) continue;
    const { left, right } = element.getBoundingClientRect();
    if (right > innerWidth + 1 || left < -1) found.push(`${name(element)}: ${Math.round(left)} to ${Math.round(right)} of ${innerWidth}`);
  }
  return found;
}"""


def looks_right(page: Page) -> None:
    """Check that nothing of a page is cut off and that all text has enough contrast, in both themes."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert (scheme, too_wide(page)) == (scheme, [])
        assert (scheme, low_contrast(page)) == (scheme, [])
