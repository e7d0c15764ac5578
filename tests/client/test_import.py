"""What a training image gets with the client: httpx, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "client"
# What httpx itself needs, and what its own command line takes where it happens to be installed.
HTTPX = {"anyio", "certifi", "h11", "httpcore", "httpx", "idna", "sniffio", "typing_extensions"}
HTTPX |= {"click", "markdown_it", "mdurl", "pygments", "rich", "socksio"}


def modules_after(code: str) -> set[str]:
    """The packages that a fresh interpreter has loaded after some code, beside its own."""
    listing = "import sys; print(); print(*{name.partition('.')[0] for name in sys.modules})"
    before, after = (
        subprocess.run(
            [sys.executable, "-c", f"{first}\n{listing}"],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()[-1].split()
        for first in ("", code)
    )  # fmt: skip
    return set(after) - set(before) - sys.stdlib_module_names


def test_the_import_loads_nothing_but_the_client() -> None:
    assert modules_after("import dpledger_client") == {"dpledger_client"}


def test_the_import_loads_no_heavy_module() -> None:
    code = "import sys, dpledger_client; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    ours = {name for name in loaded if name.partition(".")[0] == "dpledger_client"}
    assert ours == {"dpledger_client"}
    assert not {"httpx", "ssl", "asyncio", "email", "logging", "numpy"} & set(loaded)


def test_a_client_loads_httpx_and_what_it_needs() -> None:
    loaded = modules_after("import dpledger_client; dpledger_client.Client()")
    assert {"httpx", "dpledger_client"} <= loaded
    assert loaded - {"dpledger_client"} <= HTTPX


def test_the_command_line_loads_no_more() -> None:
    loaded = modules_after(
        "from dpledger_client.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    )
    assert loaded - {"dpledger_client"} <= HTTPX


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The distribution as it is installed elsewhere."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=CLIENT, capture_output=True, check=True)
    [path] = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_distribution_requires_httpx_alone(wheel: zipfile.ZipFile) -> None:
    [metadata] = [name for name in wheel.namelist() if name.endswith("METADATA")]
    lines = wheel.read(metadata).decode().splitlines()
    required = [line for line in lines if line.startswith("Requires-Dist") and "extra" not in line]
    assert required == ["Requires-Dist: httpx>=0.28"]


def test_the_distribution_holds_the_client_and_its_command(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"dpledger_client"}
    assert {"dpledger_client/training/run.py", "dpledger_client/py.typed"} <= set(names)
    [commands] = [name for name in names if name.endswith("entry_points.txt")]
    assert "dpledger-client = dpledger_client.cli:main" in wheel.read(commands).decode()
