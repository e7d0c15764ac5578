"""The first hours of the guide that need no training framework, followed from the wheels.

That of the researcher needs Opacus, and the auditor reads its run: tests/integrations/opacus.
"""

from pathlib import Path

import pytest

from deploy.release import session
from tests.packages.following import GUIDE, Typed, difference, follow, typed


def test_the_platform_engineers_hour(installed: Path, tmp_path: Path) -> None:
    page = (GUIDE / "first-hour-platform.md").read_text(encoding="utf-8")
    folder = tmp_path / "hour"
    folder.mkdir()
    given = {"HOME": str(folder), "PATH": f"{installed}/.venv/bin:/usr/bin:/bin"}
    assert len(list(typed(page))) > 15
    assert follow([page], folder, given, session.free_port()) == []


@pytest.mark.parametrize(
    ("shown", "printed", "status", "same"),
    [
        ((), "", 0, True),
        ((), "a warning\n", 0, False),
        (("one", "...", "three"), "one\ntwo\n2\nthree\n", 0, True),
        (("one", "...", "three"), "one\nthree\nfour\n", 0, False),
        (("... left of 2",), "1.5 left of 2\n", 0, True),
        (("... left of 2",), "1.5 left of 3\n", 0, False),
        (("at 2026-11-22T11:15:04.138+00:00",), "at 2026-01-02T03:04:05.000+00:00\n", 0, True),
        (("1.2795968603652828",), "1.2795968603652831\n", 0, True),
        (("1.2795968603652828",), "1.2795978603652828\n", 0, False),
        (("broken: a file",), "broken: a file\n", 1, True),
        (("fine",), "fine\n", 1, False),
        (None, "anything", 0, True),
        (None, "anything", 2, False),
    ],
)
def test_what_differs_is_seen(
    shown: tuple[str, ...] | None, printed: str, status: int, same: bool
) -> None:
    assert (difference(Typed("x", shown), printed, status) is None) is same


def test_a_command_that_is_missing_is_seen(tmp_path: Path) -> None:
    page = "```\nexport A=1\n```\n\n```\n$ echo $A\n1\n$ no-such-command\n```\n"
    (text,) = follow([page], tmp_path, {}, session.free_port())
    assert text.startswith("$ no-such-command\nstatus 127")
