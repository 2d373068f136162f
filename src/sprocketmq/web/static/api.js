// Requests to the dashboard's server: JSON with the token, errors as sentences, and events as they come.

import { address } from "./dom.js";

export class RequestFailed extends Error {
  constructor(status, kind, text) {
    super(text);
    this.status = status;
    this.kind = kind;
  }
}

let csrf = "";
let onLogout = () => {};

export function configure(session, loggedOut) {
  csrf = session.csrf ?? "";
  onLogout = loggedOut;
}

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new RequestFailed(0, "Unreachable", "");
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  const error = body?.error ?? { kind: "HttpError", text: `HTTP ${answer.status}` };
  if (answer.status === 401 && path !== "/api/login") onLogout();
  throw new RequestFailed(answer.status, error.kind, error.text);
}

export function get(path, query = {}, { signal } = {}) {
  return request(address(path, query), { signal });
}

export function post(path, body = {}) {
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": csrf };
  return request(path, { method: "POST", headers, body: JSON.stringify(body) });
}

// Events of a stream by name: stream("/api/live", {}, { cluster: (data) => ... }). It is closed while the page is hidden, opened again
// when it is lost, and ends with close(). `state` is called with "open" and "lost", `failure` with the error that ended it.
export function stream(path, query, handlers) {
  const { state = () => {}, failure = () => {}, ...named } = handlers;
  let source = null;
  let timer = 0;
  let pause = 1000;
  let ended = false;

  function open() {
    if (ended || source !== null || document.hidden) return;
    source = new EventSource(address(path, query));
    source.onopen = () => {
      pause = 1000;
      state("open");
    };
    source.onerror = () => again();
    source.addEventListener("failure", (event) => {
      const error = JSON.parse(event.data);
      again();
      failure(new RequestFailed(0, error.kind, error.text));
    });
    for (const [name, handle] of Object.entries(named)) source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  }
  function shut() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }
  function again() {
    shut();
    state("lost");
    if (!ended) timer = setTimeout(open, pause);
    pause = Math.min(pause * 2, 15000);
  }
  function seen() {
    if (document.hidden) shut();
    else open();
  }
  document.addEventListener("visibilitychange", seen);
  open();
  return () => {
    ended = true;
    document.removeEventListener("visibilitychange", seen);
    shut();
  };
}
