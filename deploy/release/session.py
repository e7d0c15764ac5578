"""The session of README.md, followed literally in a folder that holds an environment alone."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from benchmarks.ports import free_port as free_port

README: Final = Path(__file__).parents[2] / "README.md"
SECONDS: Final = 120  # for a service to become ready, and for one command
_LAST: Final = "nothing is broken"  # what the last command of the session prints
_ADDRESS: Final = "http://127.0.0.1:8000"  # of the service, in README.md
_SIGN_IN: Final = "$(cat dpledger.db.token)"
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class SessionError(Exception):
    """A line of the session did not do what README.md says."""


def blocks(text: str) -> list[tuple[str, str]]:
    """Return the language and the text of each code block of a page, in their order."""
    return _BLOCK.findall(text)


def scripts(text: str) -> list[str]:
    """Return first_run.py as README.md has it first, and with the `with` block it gives next."""
    first, second = (code for language, code in blocks(text) if language == "python")
    return [first, first[: first.index("\nwith ") + 1] + second]


def commands(text: str) -> list[str]:
    """Return the lines of README.md that a person types after `$ `, in their order."""
    lines = [line for _, code in blocks(text) for line in code.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def wait_until_ready(address: str, alive: subprocess.Popen[bytes] | None = None) -> None:
    """Return when the service answers 200 at /readyz.

    Raises:
        SessionError: if its process ends first, or it is not ready within SECONDS.
    """
    opener = build_opener(ProxyHandler({}))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if alive is not None and alive.poll() is not None:
            raise SessionError(f"The service ended with status {alive.returncode}.")
        try:
            opener.open(f"{address}/readyz", timeout=5).close()
        except (URLError, OSError):
            time.sleep(0.05)
        else:
            return
    raise SessionError(f"The service at {address} was not ready within {SECONDS} s.")


def surroundings(folder: Path) -> dict[str, str]:
    """Return the variables of a new user: a home of their own, none of Python or dpledger."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DPLEDGER_", "PYTHON", "VIRTUAL_ENV", "XDG_"))
    }
    return kept | {"HOME": str(folder)}


@contextmanager
def served(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Serve with the environment in `folder/.venv`, as `make run` does; its address.

    Raises:
        SessionError: if it does not become ready, or does not end with 0 at SIGTERM.
    """
    port = free_port()
    given = {**environment, "DPLEDGER_PORT": str(port)}
    command = [str(folder / ".venv" / "bin" / "dpledger"), "serve"]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=given, stderr=log, stdout=log)  # noqa: S603
        try:
            address = f"http://127.0.0.1:{port}"
            wait_until_ready(address, process)
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(SECONDS)
    if status:
        raise SessionError(f"The service ended with status {status} at SIGTERM.")


def follow(folder: Path, readme: str) -> list[str]:
    """Do what README.md says under "A first run", to its last line; return what was printed.

    Args:
        folder: holds `.venv`, into which both packages are installed, and nothing else.
        readme: the text of README.md.

    Raises:
        SessionError: if a command fails, or the last one finds something broken.
    """
    environment = surroundings(folder)
    with served(folder, environment) as address:
        return follow_at(folder, readme, environment | {"DPLEDGER_URL": address})


def follow_at(folder: Path, readme: str, environment: Mapping[str, str]) -> list[str]:
    """Do the same at the running service of DPLEDGER_URL, with the commands of `folder/.venv/bin`.

    If the environment names DPLEDGER_API_KEY, that key stands in place of the start token.

    Raises:
        SessionError: if a command fails, or the last one finds something broken.
    """
    typed = "\n".join(commands(readme)).replace(_ADDRESS, environment["DPLEDGER_URL"])
    if "DPLEDGER_API_KEY" in environment:
        typed = typed.replace(_SIGN_IN, "$DPLEDGER_API_KEY")
    printed = []
    for script in scripts(readme):
        (folder / "first_run.py").write_text(script, encoding="utf-8")
        printed.append(_run([".venv/bin/python", "first_run.py"], folder, environment))
    # One shell, since a line sets variables that later ones read.
    words = ["bash", "-euo", "pipefail", "-c", typed]
    printed += _run(words, folder, environment).splitlines()
    if _LAST not in printed:
        raise SessionError(f"Not printed: {_LAST}\n" + "\n".join(printed))
    return printed


def _run(words: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(  # noqa: S603
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        raise SessionError(f"{words[-1]}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    for each in follow(Path(sys.argv[1]), README.read_text(encoding="utf-8")):
        print(each)  # noqa: T201
