"""The memory of a process that serves for days."""

import subprocess
import sys

ARENAS = """
import ctypes, sys, threading
from service.web.server import share_arenas

if sys.argv[1] == "shared":
    share_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(9)

def hold():
    libc.malloc(1000)
    together.wait()

threads = [threading.Thread(target=hold) for _ in range(8)]
for thread in threads:
    thread.start()
together.wait()
libc.fopen.restype = ctypes.c_void_p
file = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.fclose(ctypes.c_void_p(file))
"""


def arenas(how: str) -> int:
    words = [sys.executable, "-c", ARENAS, how]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.count("<heap")


def test_threads_take_memory_from_two_arenas() -> None:
    assert arenas("shared") == 2
    assert arenas("apart") > 2
