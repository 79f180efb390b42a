"""Commands that end in order when they are told to."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stopped_by_exit(message: str) -> Iterator[None]:
    """Within it SIGTERM, and a terminal that goes away, end the process by SystemExit with that message, so that what
    is half done is removed on the way; a second signal doesn't cut that short.
    """

    def stop(*_: Any) -> None:
        for number in former:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(message)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    former = {each: found for each in numbers if (found := signal.getsignal(each)) is not signal.SIG_IGN}
    for number in former:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
