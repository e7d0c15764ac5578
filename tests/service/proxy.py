"""A real nginx; nothing is skipped if it is missing."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.service.sse import until

_CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  {blocks}
}}
"""


@contextmanager
def nginx(folder: Path, blocks: str, port: int) -> Iterator[str]:
    """Debian's nginx with these blocks, which listens at a port; its address."""
    found = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert found is not None, "Install nginx: apt-get install nginx-light (or nginx)."
    file = folder / "nginx.conf"
    file.write_text(_CONFIG.format(folder=folder, blocks=blocks), encoding="utf-8")
    process = subprocess.Popen([found, "-c", str(file), "-e", str(folder / "error.log")])
    front = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{front}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(answers)
        yield front
    finally:
        process.terminate()
        process.wait()
