"""Pictures of every page, for the guide: wide and narrow, light and dark.

    python -m tests.browser.screenshots [--folder docs/screenshots] [NAME ...]

A temporary service is told a season's story, and a real Chromium looks at it. Names, dates and
the clock are the story's, so that a picture changes only where its page does.
"""

import argparse
import io
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from service.identity.keys import Role, create_key
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, transaction
from tests.browser.conftest import FLAGS
from tests.browser.looking import NARROW, WIDE, Look, Scheme, looking, settled
from tests.browser.season import Clock, told, told_by
from tests.conftest import running

FOLDER: Final = Path(__file__).parents[2] / "docs" / "screenshots"
BYTES_MAX: Final = 60_000  # of one picture
TOTAL_MAX: Final = 3_100_000  # of all of them
HEIGHTS: Final = {WIDE: 1000, NARROW: 1100}  # a picture is no taller; most pages are
WIDTHS: Final = {"wide": WIDE, "narrow": NARROW}
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")
COLOURS: Final = 160  # of a picture; letters keep their edges
KEYS: Final = {
    name: f"dpl_{name}-of-the-pictures-0123456789abcdefghijkl" for name in ("dana", "cluster")
}


@dataclass(frozen=True, slots=True)
class Picture:
    """What is taken of a page: its beginning, or what stands under a heading of it."""

    path: str
    under: str = ""  # the selector of a heading
    empty: bool = False  # of a ledger in which nothing happened yet
    signed_in: bool = True
    waits: tuple[str, ...] = ()  # for what comes after the page
    data: tuple[str, ...] = ()  # of which the page shows ever more


CURVES: Final = ("/history.json", "/schedule.json")
TOLD: Final = ("#guarantee .spent", "#growth canvas", "#trade-off canvas", "#profile canvas")
TRIES: Final = 100
# Nothing has the focus, and the address is the one that the guide names.
STILL: Final = """(own) => {
  document.activeElement.blur();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    walk.currentNode.data = walk.currentNode.data.replace(own, "127.0.0.1:8000");
  }
}"""

# A picture has no scrollbar, and needs no place for one.
WHOLE: Final = """addEventListener("DOMContentLoaded", () => {
  document.documentElement.style.scrollbarGutter = "auto";
})"""

PICTURES: Final = {
    "overview": Picture("/", waits=(".curves",)),
    "datasets": Picture("/datasets"),
    "dataset": Picture("/datasets/chest-scans"),
    "dataset-incidents": Picture("/datasets/visits", "#incidents"),
    "dataset-limit": Picture("/datasets/claims", "#limits"),
    "new-dataset": Picture("/new-dataset?plan=noise_multiplier%3D2"),
    "keys": Picture("/keys"),
    "key": Picture("/keys/cluster"),
    "reservation-void": Picture("/reservations/cnn-augmented-7/void"),
    "runs": Picture("/runs"),
    "run-close": Picture("/runs/triage-bert/finish"),
    "run-correct": Picture("/runs/speaker-id/correct"),
    "run": Picture("/runs/cnn-augmented", waits=TOLD, data=CURVES),
    "run-meaning": Picture("/runs/cnn-augmented", "#meaning-title", waits=TOLD, data=CURVES),
    "run-contradicted": Picture("/runs/speaker-id", waits=TOLD[:1], data=CURVES),
    "run-waiting": Picture("/runs/triage-bert", waits=TOLD[:1]),
    "requests": Picture("/requests"),
    "planner": Picture(
        "/planner/answer?dataset=claims&dataset_size=180000&batch_size=512",
        waits=("[data-schemes]",),
    ),
    "theorems": Picture("/theorems"),
    "theorem": Picture("/theorems/poisson-gaussian"),
    "theory": Picture("/docs/theory"),
    "proof": Picture("/docs/theory/renyi"),
    "docs": Picture("/docs"),
    "compare": Picture("/compare?runs=cnn-baseline,cnn-wide,cnn-augmented", waits=(".curves",)),
    "incidents": Picture("/incidents"),
    "log": Picture("/log"),
    "run-report": Picture("/runs/cnn-wide/report"),
    "dataset-report": Picture("/datasets/chest-scans/report"),
    "error": Picture("/runs/nobody"),
    "empty": Picture("/", empty=True),
    "sign-in": Picture("/sign-in", signed_in=False),
}


def files() -> dict[str, tuple[str, str, Scheme]]:
    """Every picture's file, and of what it is."""
    return {
        f"{name}-{width}-{scheme}.webp": (name, width, scheme)
        for name in PICTURES
        for width in WIDTHS
        for scheme in SCHEMES
    }


def guarded(folder: Path) -> str:
    """A database with the story's two keys."""
    url = f"sqlite:///{folder / 'dpledger.db'}"
    engine = connect(url)
    migrations.upgrade(engine)
    with transaction(engine) as connection:
        for name, scope in (("dana", Role.ADMIN), ("cluster", Role.TRAINER)):
            create_key(connection, name=name, scope=scope, key=KEYS[name], by="setup")
    engine.dispose()
    return url


def caller(address: str, name: str) -> httpx.Client:
    """Who asks the service."""
    bearer = {"Authorization": f"Bearer {KEYS[name]}"}
    return httpx.Client(base_url=address, timeout=60, headers=bearer)


@contextmanager
def services() -> Iterator[tuple[str, str]]:
    """The addresses of a service with a season in it, and of one with nothing."""
    teller = Clock()
    with TemporaryDirectory() as first, TemporaryDirectory() as second, told_by(teller):
        full, empty = guarded(Path(first)), guarded(Path(second))
        with (
            running(Settings(database_url=full)) as address,
            running(Settings(database_url=empty)) as other,
        ):
            with caller(address, "dana") as officer, caller(address, "cluster") as trainer:
                told(officer, trainer, teller)
            yield address, other


def sign_in(page: Page, address: str) -> None:
    """Dana comes in."""
    page.add_init_script(WHOLE)
    page.goto(address + "/sign-in")
    page.get_by_label("key").fill(KEYS["dana"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(address + "/")


def worked_out(page: Page, picture: Picture, address: str) -> None:
    """Wait until the service knows every point of a run's curves; it tells some of them early."""
    for data in picture.data:
        for _ in range(TRIES):
            told = page.request.get(address + picture.path + data)
            if told.ok and told.json()["complete"]:
                break
            time.sleep(0.2)


def seen(page: Page, picture: Picture, address: str, height: int) -> Image.Image:
    """What a person sees of a page."""
    page.set_viewport_size({"width": page.evaluate("() => innerWidth"), "height": height})
    worked_out(page, picture, address)
    page.goto(address + picture.path)
    settled(page)
    for awaited in picture.waits:
        page.locator(awaited).first.wait_for()
    page.evaluate(STILL, urlsplit(address).netloc)
    place = page.locator(picture.under).bounding_box() if picture.under else None
    top = max(0, place["y"] - 24) if place else 0
    size: dict[str, int] = page.evaluate(
        "() => ({width: document.documentElement.clientWidth,"
        " height: document.documentElement.scrollHeight})"
    )
    clip = {
        "x": 0, "y": top, "width": size["width"], "height": min(height, size["height"] - top),
    }  # fmt: skip
    taken = page.screenshot(full_page=True, clip=clip, animations="disabled", caret="hide")  # type: ignore[arg-type]
    return Image.open(io.BytesIO(taken)).convert("RGB")


def packed(image: Image.Image) -> bytes:
    """A picture as a small file: few colours, and of those every point as it was."""
    file = io.BytesIO()
    few = image.quantize(COLOURS, dither=Image.Dither.NONE).convert("RGB")
    few.save(file, "WEBP", lossless=True, quality=80, method=4)
    return file.getvalue()


def series(
    look: Look, names: list[str], pixels: int, scheme: Scheme, addresses: tuple[str, str]
) -> Iterator[tuple[str, Image.Image]]:
    """Every picture of one width and one scheme."""
    full, empty = addresses
    inside, outside, nothing = (look(pixels, scheme) for _ in range(3))
    outside.add_init_script(WHOLE)
    sign_in(inside, full)
    sign_in(nothing, empty)
    for name in names:
        picture = PICTURES[name]
        page = nothing if picture.empty else inside if picture.signed_in else outside
        address = empty if picture.empty else full
        yield name, seen(page, picture, address, HEIGHTS[pixels])


def take(browser: Browser, folder: Path, names: list[str]) -> None:
    """Write every picture, those of one width and scheme after one another."""
    folder.mkdir(parents=True, exist_ok=True)
    with services() as (full, empty):
        for width, pixels in WIDTHS.items():
            for scheme in SCHEMES:
                with looking(browser) as look:
                    for name, image in series(look, names, pixels, scheme, (full, empty)):
                        file = folder / f"{name}-{width}-{scheme}.webp"
                        file.write_bytes(packed(image))


def main() -> int:
    """Take the pictures that are asked for, or all; tell their size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of " + ", ".join(PICTURES))
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(PICTURES):
        parser.error(f"no such picture: {', '.join(sorted(unknown))}")
    program = shutil.which("chromium")
    if program is None:
        parser.error("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        take(browser, asked.folder, asked.names or list(PICTURES))
        browser.close()
    sizes = [path.stat().st_size for path in asked.folder.glob("*.webp")]
    sys.stdout.write(
        f"{len(sizes)} pictures, {sum(sizes) / 1000:,.0f} kB, the largest {max(sizes) / 1000:.0f}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
