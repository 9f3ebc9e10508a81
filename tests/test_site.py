"""The built site: what is two clicks away, and what a browser makes of it at three widths, in the dark and from the disk."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WIDTHS = (400, 1000, 1600)
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.slow

MEASURE = """<!doctype html><body><script>
const pages = PAGES, widths = WIDTHS;
function outside(frame) {
  const page = frame.contentDocument, edge = page.documentElement.clientWidth + 1;
  if (page.documentElement.scrollWidth > edge) return "the page scrolls sideways";
  const scrolls = (e) => frame.contentWindow.getComputedStyle(e).overflowX !== "visible";
  for (const element of page.querySelectorAll("article *")) {
    const { right, width } = element.getBoundingClientRect();
    if (!width || right <= edge) continue;
    let above = element.parentElement;
    while (above !== page.body && !scrolls(above)) above = above.parentElement;
    if (above === page.body) return element.tagName + " " + element.textContent.slice(0, 60);
  }
  return null;
}
async function measure(page, width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 900px`;
  frame.src = page;
  const loaded = new Promise((resolve) => (frame.onload = resolve));
  document.body.append(frame);
  await loaded;
  const what = outside(frame);
  frame.remove();
  return what ? [[page, width, what]] : [];
}
(async () => {
  const found = [];
  for (const page of pages)
    found.push(...(await Promise.all(widths.map((width) => measure(page, width)))).flat());
  await fetch("/found", { method: "POST", body: JSON.stringify({ pages: pages.length, found }) });
})();
</script>"""

ASK = """<script>
setTimeout(() => {
  const open = document.getElementById("__search"), field = document.querySelector("input.md-search__input");
  open.checked = true;
  open.dispatchEvent(new Event("change"));
  field.focus();
  field.value = "natural gradients";
  field.dispatchEvent(new Event("input", { bubbles: true }));
  field.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
}, 1000);
</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("material", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture
def browser(tmp_path) -> list[str]:
    if BROWSER is None:
        pytest.skip("needs Chromium")
    offline = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    return [BROWSER, *options, offline]


def _links(page: Path) -> set[Path]:
    """Return where the text of a page links to; the menus beside it do not count."""
    article = page.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
    targets = re.findall(r'href="([^"#:]+\.html)(?:#[^"]*)?"', article)
    return {(page.parent / target).resolve() for target in targets}


def test_models_tutorials_and_how_tos_are_two_clicks_from_the_front_page(site) -> None:
    first = _links(site / "index.html")
    near = first.union(*map(_links, first))
    aims = {path for folder in ("models", "tutorials", "howto") for path in (site / folder).glob("*.html")}
    assert len(aims) > 25
    assert {str(path.relative_to(site)) for path in aims - near} == set()
    assert {path.name for path in (site / "models").glob("*.html")} - {path.name for path in first} <= {
        "grids.html",  # priors of models that the front page names
        "vecchia.html",
    }


@pytest.fixture
def served(site) -> Iterator[tuple[str, threading.Event, dict]]:
    """Serve the site and a page that measures it; what that page sends comes back."""
    arrived, answer = threading.Event(), {}
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if path.name != "404.html")
    measure = MEASURE.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(WIDTHS))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/measure":
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(measure.encode())
            else:
                super().do_GET()

        def do_POST(self) -> None:
            answer.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            arrived.set()

        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/measure", arrived, answer
        server.shutdown()


def test_nothing_overflows_at_any_width(served, browser) -> None:
    address, arrived, answer = served
    size = f"--window-size={WIDTHS[-1] + 100},1000"
    with subprocess.Popen(
        [*browser, size, "--remote-debugging-port=0", address], stderr=subprocess.DEVNULL
    ) as one:
        came = arrived.wait(timeout=240)
        one.terminate()
    assert came
    assert answer["pages"] > 70
    assert answer["found"] == []


def _dom(browser: list[str], page: Path, *options: str) -> str:
    command = [*browser, "--virtual-time-budget=20000", *options, "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return shown.stdout


def test_the_search_answers_from_the_disk(site, browser) -> None:
    text = (site / "howto" / "index.html").read_text(encoding="utf-8")
    page = site / "howto" / "asks.html"
    page.write_text(text.replace("</body>", ASK), encoding="utf-8")
    try:
        shown = _dom(browser, page)
    finally:
        page.unlink()
    found = re.search(r"(\d+) matching documents", shown)
    assert found is not None
    assert int(found[1]) > 5
    assert "models/svgp_robustmax.html" in shown


@pytest.mark.parametrize(("preferred", "scheme"), [(0, "slate"), (1, "default")])
def test_the_colours_follow_the_system(site, browser, preferred, scheme) -> None:
    shown = _dom(browser, site / "index.html", f"--blink-settings=preferredColorScheme={preferred}")
    assert re.search(rf'<body[^>]*data-md-color-scheme="{scheme}"', shown)
