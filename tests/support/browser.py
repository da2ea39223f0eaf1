"""Checks the site's pages in a browser: how wide each one becomes in a window of a given width.

A page of this module's own loads the others in a frame, measures them and writes what it found into itself;
headless Chromium prints it. Nothing but Chromium is needed.
"""

from __future__ import annotations

import dataclasses
import html
import json
import pathlib
import re
import shutil
import subprocess

_HARNESS = """<!doctype html>
<body><iframe id="frame" style="border: 0; height: 2000px"></iframe><pre id="found"></pre>
<script>
const frame = document.getElementById("frame");
const wide = (element) => element.scrollWidth > element.clientWidth + 1;
function measure(page, width) {
  const inside = frame.contentDocument, found = [];
  if (inside.documentElement.scrollWidth > width) found.push("the page");
  for (const element of inside.querySelectorAll("article pre, article .table-wrapper")) {
    const name = element.tagName + ": " + element.textContent.trim().slice(0, 60);
    if (wide(element)) found.push(name);
  }
  for (const drawer of inside.querySelectorAll(".toc-drawer")) {
    const box = drawer.getBoundingClientRect();
    if (box.left < width && box.width && box.right > width + 1) found.push("the list of headings");
  }
  const shown = [...inside.querySelectorAll("article img")].filter((i) => i.offsetWidth);
  const titles = inside.querySelectorAll("h1").length;
  return {page, width, found, titles, shown: shown.map((i) => i.getAttribute("src"))};
}
async function run(pages, widths) {
  const results = [];
  for (const page of pages) {
    for (const width of widths) {
      frame.style.width = width + "px";
      await new Promise((done) => { frame.onload = done; frame.src = page; });
      results.push(measure(page, width));
    }
  }
  document.getElementById("found").textContent = JSON.stringify(results);
}
run(PAGES, WIDTHS);
</script></body>
"""


@dataclasses.dataclass(frozen=True)
class Seen:
    """A page in a window. ``too_wide`` names what does not fit; ``images`` are the images that are shown."""

    page: str
    width: int
    too_wide: tuple[str, ...]
    images: tuple[str, ...]


def chromium() -> str | None:
    """The command of a Chromium, None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


def look(site: pathlib.Path, pages: list[str], widths: list[int], dark: bool = False) -> list[Seen]:
    """Every page at every width."""
    command = chromium()
    assert command is not None
    harness = site / "_harness.html"
    text = _HARNESS.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(widths))
    harness.write_text(text)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    options += ["--window-size=1600,2200", "--virtual-time-budget=120000", "--dump-dom"]
    # Pages with formulas load a script from another host; in this test that fails at once.
    options += ["--host-resolver-rules=MAP * ~NOTFOUND"]
    options += ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run(
        [command, *options, harness.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = re.search(r'<pre id="found">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, f"Chromium measured nothing:\n{done.stderr[-2000:]}"
    results = json.loads(html.unescape(found[1]))
    assert all(result["titles"] == 1 for result in results), "a page was not loaded"
    return [Seen(r["page"], r["width"], tuple(r["found"]), tuple(r["shown"])) for r in results]
