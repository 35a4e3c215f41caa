"""Runs a program so that it cannot outlive the process that started it.

Started as a script, never imported: `python -I watched.py WATCH PROGRAM [ARGUMENT]...`. `WATCH` is
the reading end of a pipe whose writing end only the parent holds. When the parent ends, however it
ends, the kernel closes that end and sends SIGKILL to this process group (`O_ASYNC`, `F_SETSIG`): no
thread of ours has to run for it, so it also works while a C library holds the interpreter, as
llama.cpp does for as long as it loads a model. A thread that reads the pipe is the second belt.
`PR_SET_PDEATHSIG` would not do: it follows the parent's thread, not its process.

A `PROGRAM` that ends in `.py` runs in this interpreter, anything else replaces it. The standard
library is all that this file imports, because the server's start waits for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import threading

_F_SETSIG = 10  # <fcntl.h>; the fcntl module does not name it


def watch(handle: int) -> None:
    """Kill this process group once the other end of the pipe `handle` is closed."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(handle, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(handle, _F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(handle, fcntl.F_GETFL)
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | os.O_ASYNC)
    poll = select.poll()
    poll.register(handle, select.POLLHUP)
    if poll.poll(0):  # the parent was gone before the kernel was told to watch
        _kill_group()


def _kill_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _wait_and_kill(handle: int) -> None:
    while os.read(handle, 64):
        pass
    _kill_group()


def main(arguments: list[str]) -> None:
    """Watch, then become the program."""
    handle, program = int(arguments[0]), arguments[1]
    watch(handle)
    if not program.endswith(".py"):
        os.set_inheritable(handle, True)
        os.execvp(program, arguments[1:])  # noqa: S606
    threading.Thread(target=_wait_and_kill, args=(handle,), daemon=True).start()
    sys.argv = arguments[1:]
    import runpy

    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
