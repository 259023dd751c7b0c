"""A listener that takes one connection, for servers that answer wrongly, late or not at all."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def one_connection(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accept one connection, call ``serve`` with it in a thread, and close it; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            connection, _ = listening.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(stretch(20))
