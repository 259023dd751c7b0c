"""Python programs that start at once: they are forked from a process that has already imported what they use.

An interpreter that imports Strata's coordinator computes for 0.7 s before it does anything, and one that imports torch
for 1.5 s. Tests start thousands of them. ``ForkedProcess`` is a Popen for ``python -m``, ``python -c`` and ``python
FILE``, whose program runs in a fork of a server that has everything imported. Importing Strata starts no thread and
reads no setting, so a fork of it is like a new process; a program for which that is not so must be started by exec.

There are two servers in a test process, one with torch and one without, each started when it is needed first. They die
with the test process, and the programs die with them.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import IO, Any

from strata.run.launch.worker_process import DIE_WITH_PARENT
from tests.testbed.processes.recorded import RecordedProcess

MODULES = (
    "numpy",
    "pyarrow.parquet",
    "strata.cli.app",
    "strata.client.client",
    "strata.coordinator.server",
    "strata.data",
    "strata.demo.samples",
    "strata.data.opening",
    "strata.data.text.assembled",
    "strata.run.join",
    "strata.run.team.coordinated_team",
)
TORCH_MODULES = ("torch", "torch.distributed", "torch.distributed.tensor", "torch.nn.parallel")
# What an interpreter or a library reads while it starts. A program with other values than the server's is executed.
READ_AT_START = ("PYTHON", "LD_", "COVERAGE", "FAKETIME", "GRPC_", "MALLOC_", "GLIBC_")
NOT_BY_FORK = {"preexec_fn", "pass_fds", "executable", "process_group", "user", "umask"}
# Becomes a program that may open as many files as on most systems. Root in a container often has more, which would hide
# that a program needs them.
PLAIN_CHILD = f"""
import resource
many, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (many if 0 <= many < 1024 else 1024, most))
{DIE_WITH_PARENT}"""
LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!i")


class ForkedProcess(RecordedProcess):
    """A Popen whose child is forked by a server; everything that a Popen does works."""

    _status_fd = -1

    def _execute_child(self, args: Any, *rest: Any) -> None:
        # The names and the order are those of subprocess.Popen._execute_child.
        _, _, _, _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others = rest
        start_new_session = others[-2]
        self._status_fd, theirs = os.pipe()
        files = [p2cread if p2cread != -1 else 0, c2pwrite if c2pwrite != -1 else 1, errwrite if errwrite != -1 else 2]
        request = {
            "words": [str(word) for word in args],
            "environment": dict(os.environ if env is None else env),
            "folder": str(Path.cwd() if cwd is None else Path(cwd).resolve()),
            "new_session": bool(start_new_session),
        }
        try:
            self.pid = server_for(request["words"], request["folder"]).fork(request, [*files, theirs])
        finally:
            os.close(theirs)
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._status_fd], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._status_fd, STATUS.size)
        os.close(self._status_fd)
        # Without a word of the server, which is gone, the child was killed with it.
        return self.pid, STATUS.unpack(status)[0] if status else signal.SIGKILL

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def can_fork(command: list[str], options: dict[str, Any]) -> bool:
    """Whether a command is a Python program that may begin as a fork."""
    if len(command) < 2 or command[0] != sys.executable or options.keys() & NOT_BY_FORK:
        return False
    if "COVERAGE_PROCESS_START" in os.environ or "COVERAGE_PROCESS_CONFIG" in os.environ:
        return False  # it measures from the start of an interpreter
    if command[1].startswith("-") and command[1] not in ("-m", "-c"):
        return False
    environment = options.get("env") or os.environ
    names = environment.keys() | os.environ.keys()
    is_same = all(environment.get(name) == os.environ.get(name) for name in names if name.startswith(READ_AT_START))
    return is_same and "import jax" not in _text_of(command, options.get("cwd") or "")


@cache
def _server(has_torch: bool) -> _Server:
    return _Server((*MODULES, *(TORCH_MODULES if has_torch else ())))


def server_for(words: list[str], folder: str) -> _Server:
    """Return the server that has imported what a program uses; whether that is torch, its text tells."""
    text = _text_of(words, folder)
    return _server("import torch" in text or "torch.distributed" in text)


def _text_of(words: list[str], folder: str | Path) -> str:
    """Return the command, and the text of the program where it is a file."""
    path = f"{words[2].replace('.', '/')}.py" if words[1] == "-m" else words[1]
    file = Path(folder, path)
    return " ".join(words) + (file.read_text() if path.endswith(".py") and file.is_file() else "")


class _Server:
    """A server's end in the test process."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._socket, theirs = socket.socketpair()
        become = [sys.executable, "-S", "-E", "-c", PLAIN_CHILD, str(os.getpid()), sys.executable]
        root = str(Path(__file__).parents[3])
        self._process = subprocess.Popen(
            [*become, "-m", "tests.testbed.processes.fork_server", str(theirs.fileno()), *modules],
            cwd=root,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"},
        )
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def fork(self, request: dict[str, Any], files: list[int]) -> int:
        """Start a program with these files as its input, output and errors; the last one gets its exit status."""
        data = json.dumps(request).encode()
        socket.send_fds(self._socket, [LENGTH.pack(len(data))], files)
        self._socket.sendall(data)
        reply = self._socket.recv(LENGTH.size, socket.MSG_WAITALL)
        if len(reply) < LENGTH.size:
            raise RuntimeError(f"the server of forks ended with {self._process.wait()}")
        pid: int = LENGTH.unpack(reply)[0]
        return pid


def serve(connection: socket.socket, modules: list[str]) -> dict[str, Any]:
    """Fork a program for each request. Return only in the child, with the request that it is for."""
    for module in modules:
        importlib.import_module(module)
    wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    while True:
        ready = select.select([connection, wakeup], [], [])[0]
        if wakeup in ready:
            os.read(wakeup, 4096)
            _report_ended(statuses)
        if connection in ready:
            head, files, _, _ = socket.recv_fds(connection, LENGTH.size, 4)
            if not head:
                sys.exit()
            request = json.loads(connection.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL))
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for fd in (connection.detach(), wakeup, signalled, files.pop(), *statuses.values()):
                    os.close(fd)
                _become(request, files, server)
                return dict(request)
            statuses[pid] = files.pop()
            for fd in files:
                os.close(fd)
            connection.sendall(LENGTH.pack(pid))


def _report_ended(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        fd = statuses.pop(pid)
        os.write(fd, STATUS.pack(status))
        os.close(fd)


def _become(request: dict[str, Any], files: list[int], server: int) -> None:
    """Make a fork look like a process that was just started."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != server:
        os._exit(1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not None and number not in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
    for target, fd in enumerate(files):
        os.dup2(fd, target)
        if fd > 2:
            os.close(fd)
    if request["new_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin, sys.stdout, sys.stderr = _text(0, "r"), _text(1, "w"), _text(2, "w")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def _text(fd: int, mode: str) -> IO[str]:
    buffering = 1 if fd == 2 or (fd == 1 and os.isatty(fd)) else -1
    errors = "backslashreplace" if fd == 2 else "strict"
    return open(fd, mode, buffering, encoding="utf-8", errors=errors, closefd=False)


def run(words: list[str]) -> None:
    """Run the program of ``python -m``, ``python -c`` or ``python FILE``, as an interpreter would."""
    kind, arguments = words[1], words[2:]
    if kind == "-m":
        sys.argv = arguments
        sys.path[0] = os.getcwd()  # noqa: PTH109 - as the interpreter does
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.path[0] = ""
        main = type(sys)("__main__")
        sys.modules["__main__"] = main
        exec(compile(arguments[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = words[1:]
        sys.path[0] = str(Path(kind).resolve().parent)
        main = type(sys)("__main__")
        main.__dict__.update(__file__=kind, __builtins__=__builtins__)
        sys.modules["__main__"] = main
        exec(compile(Path(kind).read_text(), kind, "exec"), vars(main))


if __name__ == "__main__":
    run(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])["words"])
