"""Work that computes beside the step thread, in a thread that ends with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def apart(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises, from a thread of its own.

    Every thread that has computed with torch keeps a pool of OpenMP's threads until it ends. Once all pools together
    have more threads than there are processors, barriers within a step put their threads to sleep instead of waiting:
    that costs each of many small layers more than it computes.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits
            done.set_exception(error)

    thread = threading.Thread(target=run, name=threading.current_thread().name, daemon=True)
    thread.start()
    thread.join()
    return done.result()
