// Which page is shown: addresses are paths with a query, and links change pages without loading the document again.

let show = () => {};

export function startRouter(onChange) {
  show = onChange;
  window.addEventListener("popstate", () => show());
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest?.("a[href]");
    if (!anchor || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const target = new URL(anchor.href);
    if (target.origin !== location.origin || target.pathname.startsWith("/static/") || anchor.getAttribute("href").startsWith("#")) return;
    event.preventDefault();
    navigate(target.pathname + target.search);
  });
  show();
}

// Show another address; with `replace` the way back leads past this one.
export function navigate(to, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  show();
}

// Note what a page shows in its address without showing the page again.
export function note(to) {
  history.replaceState(null, "", to);
}
