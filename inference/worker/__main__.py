"""``python -m inference.worker --spec FILE``: one worker process."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from inference import logs

RECORD_LOCKED = 3


def main() -> int:
    """Run the worker of the spec; return its exit status: 2 for a bad spec, 3 when its record is locked."""
    parser = argparse.ArgumentParser(prog="python -m inference.worker")
    parser.add_argument("--spec", type=Path, required=True)
    path = parser.parse_args().spec
    # OpenMP reads it when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    lines = logs.configure("worker", sys.stdout)

    import zmq

    from inference.config import WorkerConfig
    from inference.worker.process import Worker
    from inference.worker.record import RecordLockedError

    log = logging.getLogger("inference.worker")
    try:
        config = WorkerConfig.load(path)
    except (OSError, ValueError) as error:
        log.critical("the spec can't be used: %s", error)
        return 2
    try:
        worker = Worker(config, spec=path)
    except RecordLockedError as error:
        log.critical("%s", error)
        return RECORD_LOCKED
    except zmq.ZMQError as error:
        log.critical("%s can't be bound: %s", config.endpoint, error)
        return 2
    except (OSError, ValueError) as error:
        log.critical("the key file can't be used: %s", error)
        return 2
    status = worker.run()
    if worker.is_loading:
        # Python's normal shutdown would crash that thread inside a library.
        lines.drain()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
