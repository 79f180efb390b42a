"""``python -m inference.worker --spec FILE``: one worker process."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path

RECORD_LOCKED = 3

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "taskName"}  # fields of every log record


class JSONFormatter(logging.Formatter):
    """One JSON object a line: time, level, message, and whatever the caller added."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class LineFormatter(logging.Formatter):
    """One line of text, for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        more = "".join(f" {key}={value}" for key, value in vars(record).items() if key not in _STANDARD)
        level = "" if record.levelno <= logging.INFO else f" [{record.levelname.lower()}]"
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{time.strftime('%H:%M:%S')}{level} {record.getMessage()}{more}{trace}"


def main() -> int:
    """Run the worker of the spec; return its exit status: 2 for a bad spec, 3 when its record is locked."""
    parser = argparse.ArgumentParser(prog="python -m inference.worker")
    parser.add_argument("--spec", type=Path, required=True)
    path = parser.parse_args().spec
    # OpenMP reads it when torch is imported.
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
        return RECORD_LOCKED
    except zmq.ZMQError as error:
        log.critical("%s can't be bound: %s", config.endpoint, error)
        return 2
    status = worker.run()
    if worker.is_loading:
        # Python's normal shutdown would crash that thread inside a library.
        logging.shutdown()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
