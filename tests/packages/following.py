"""Pages of the guide, followed literally: what they say is typed, what they show is compared."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.release.session import SessionError, blocks

GUIDE: Final = Path(__file__).parents[2] / "docs" / "guide"
ADDRESS: Final = "http://127.0.0.1:8000"
SECONDS: Final = 300  # for all pages of one call
_MARK: Final = "@@ "
_SERVE: Final = "dpledger serve"
# What differs at each time, in what a page shows and in what is printed.
_VARIES: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)?"), "TIME"),
    (re.compile(r"dpl_[\w-]+"), "KEY"),
    (re.compile(r"(?<![\w.-])([\w-]{43}|[0-9a-f]{16,64})(?![\w-])"), "HASH"),
    (re.compile(r"\b\d+%"), "PERCENT"),
)
_LONG: Final = re.compile(r"\d+\.\d{13,}")  # more digits than another machine repeats


@dataclass(frozen=True)
class Typed:
    """A command of a page, and the lines that the page shows below it; None if it shows none."""

    line: str
    shown: tuple[str, ...] | None


def typed(page: str) -> Iterator[Typed]:
    """Return the commands of a page in its order; a Python block becomes the file it is saved as.

    Virtual environments are left out: the caller's PATH has what they would hold.
    """
    end = 0
    for language, code in blocks(page):
        start = page.index(code, end)
        named = re.findall(r"`(\w+\.py)`", page[end:start])
        end = start + len(code)
        if language == "python" and named:
            yield Typed(f"cat > {named[-1]} <<'END'\n{code}END", ())
        elif not language and code.startswith("$ "):
            for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
                line, *shown = part.splitlines()
                yield Typed(line, tuple(shown))
        elif not language:
            for line in code.splitlines():
                kept = re.sub(r"\s*&& \. \.venv/bin/activate$", "", line)
                if not re.search(r"-m venv|pip install", kept):
                    yield Typed(kept, None)


def follow(pages: Sequence[str], folder: Path, given: Mapping[str, str], port: int) -> list[str]:
    """Type what pages say, one page after the other, each from `folder`; return what differed.

    Args:
        pages: texts of pages.
        folder: empty.
        given: environment variables; PATH leads to `dpledger` and `python`.
        port: of this machine, unused; it replaces that of ADDRESS.

    Raises:
        SessionError: the shell ended before the last command.
    """
    commands = [[Typed(f"cd {folder}", ()), *typed(page)] for page in pages]
    every = [one for page in commands for one in page]
    address = ADDRESS.replace("8000", str(port))
    script = ["trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"]
    for number, one in enumerate(every):
        line = one.line.replace(ADDRESS, address)
        if line == _SERVE:
            ready = f"until curl -s -o /dev/null {address}/readyz; do sleep 0.1; done"
            line = f"{_SERVE} > serve.log 2>&1 &\n{ready}"
        script += [line, f"printf '\\n{_MARK}%s %s\\n' {number} $?"]
    environment = {**os.environ, **given, "DPLEDGER_PORT": str(port), "DPLEDGER_URL": address}
    done = subprocess.run(
        ["/bin/bash", "-c", "\n".join(script)],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    parts = re.split(rf"\n{_MARK}\d+ (\d+)\n", done.stdout.replace(address, ADDRESS))
    printed, statuses = parts[:-1:2], parts[1::2]
    if len(printed) != len(every):
        raise SessionError(f"The shell ended early.\n{done.stdout}")
    results = zip(every, printed, statuses, strict=True)
    return [text for one, out, status in results if (text := difference(one, out, int(status)))]


def difference(one: Typed, printed: str, status: int) -> str | None:
    """Return what a command did other than its page shows, or None.

    A line `...` of a page stands for any lines, and `...` in a line for any text. A status other
    than 0 must be shown by a line that begins with `broken`.
    """
    shown = "\n".join(one.shown or ())
    failed = bool(status) and not shown.startswith("broken")
    if not failed and (one.shown is None or _pattern(one.shown).fullmatch(_plain(printed))):
        return None
    return f"$ {one.line}\nstatus {status}\n--- shown\n{shown}\n--- printed\n{printed}"


def _pattern(shown: Sequence[str]) -> re.Pattern[str]:
    parts = [
        "(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
        for line in _plain("\n".join(shown)).splitlines()
    ]
    return re.compile("".join(parts))


def _plain(text: str) -> str:
    """The text without what varies, with a line end after its last line."""
    for pattern, name in _VARIES:
        text = pattern.sub(name, text)
    text = _LONG.sub(lambda found: f"{float(found[0]):.10g}", text)
    return text.rstrip("\n") + "\n" if text.strip("\n") else ""
