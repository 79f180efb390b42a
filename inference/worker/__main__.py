"""``python -m inference.worker --spec FILE``: one worker process, which knows its spec and nothing else."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path

RECORD_HELD = 3

_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "taskName"}


class JSONFormatter(logging.Formatter):
    """One JSON object a line: time, level, message, and whatever the caller added."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({key: value for key, value in vars(record).items() if key not in _PLAIN})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class LineFormatter(logging.Formatter):
    """A line for people at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        more = "".join(f" {key}={value}" for key, value in vars(record).items() if key not in _PLAIN)
        level = "" if record.levelno <= logging.INFO else f" [{record.levelname.lower()}]"
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{time.strftime('%H:%M:%S')}{level} {record.getMessage()}{more}{trace}"


def main() -> int:
    """Run the worker of the spec and return its exit status: 2 for a bad spec, 3 when its record is held."""
    parser = argparse.ArgumentParser(prog="python -m inference.worker")
    parser.add_argument("--spec", type=Path, required=True)
    path = parser.parse_args().spec
    # Read by OpenMP when torch is loaded, so it has to stand before any import of it.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(LineFormatter() if sys.stdout.isatty() else JSONFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])

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
        return RECORD_HELD
    except zmq.ZMQError as error:
        log.critical("%s can't be bound: %s", config.endpoint, error)
        return 2
    status = worker.run()
    if worker.is_loading:
        # Python's own way out runs into what that thread is doing inside a library.
        logging.shutdown()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
