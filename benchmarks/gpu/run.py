"""Check every kernel on this device, measure the engine, and print one table last: see run.sh."""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.gpu import adapters, checks, speed
from benchmarks.gpu.shapes import Sizes, full, kv_numbers, little, matrix_numbers, smoke
from inference.cuda.device import Device
from inference.types import SamplingParams

BUDGET = 540  # seconds; what hasn't begun by then is left out, and the table says so
COMPILERS = 16  # processes that compile kernels
COMPILING = 180  # seconds; what isn't compiled by then is compiled where it is used
PEER = 100  # seconds that the peer has for the mixed workload
QUANTIZATIONS = ("", "fp8", "w8a8", "int4")
CHOSEN = SamplingParams(temperature=0.8, top_k=50, top_p=0.9)


class Report:
    """Lines of (what, value, goal or remark), printed as they come and once more at the end."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.lines: list[tuple[str, str, str]] = []
        self.failed = False

    def add(self, what: str, value: str, goal: str = "") -> None:
        self.lines.append((what, value, goal))
        print(f"[{time.perf_counter() - self.began:5.0f} s] {what}: {value} {goal}", flush=True)

    def attempt(self, what: str, work: Callable[[], None]) -> None:
        """Run one part; what it raises is a line of the table, and the next part goes on."""
        if time.perf_counter() - self.began > BUDGET:
            self.add(what, "not run", "the time was over")
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts still run
            traceback.print_exc()
            self.failed = True
            self.add(what, "FAILED", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:100]}")
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def table(self) -> str:
        rows = [("measurement", "value", "goal"), ("---", "---", "---"), *self.lines]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join(
            "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows
        )


def units(sizes: Sizes) -> dict[str, Callable[[], object]]:
    """Return what has every kernel compiled, in parts that need nothing of each other, by name."""

    def check(part: Callable[[], Iterator[checks.Check]]) -> None:
        deque(part(), maxlen=0)

    def steps(quantization: str) -> None:
        config = sizes.config.__class__(**{**sizes.config.to_dict(), "num_hidden_layers": 1})
        shallow = replace(sizes, config=config)
        subject = speed.runner(shallow, quantization, None)
        subject.capture()
        speed.prefilling(shallow, subject)
        speed.decoding(shallow, subject, 1, sizes.context // 4, sampling=CHOSEN)

    found: dict[str, Callable[[], object]] = {
        f"steps {quantization}".strip(): partial(steps, quantization) for quantization in QUANTIZATIONS
    }
    found["answers"] = partial(speed.likely, little(sizes), None)
    return found | {name: partial(check, part) for name, part in checks.parts(sizes).items()}


def compile_first(report: Report, names: Iterable[str], arguments: Sequence[str]) -> None:
    """Run the units in processes of their own, whose kernels stay in Triton's cache: one after the other they would
    take most of the time.
    """
    waiting = deque(names)
    running: dict[subprocess.Popen[bytes], str] = {}
    began, failed = time.perf_counter(), []
    while (waiting or running) and time.perf_counter() - began < COMPILING:
        while waiting and len(running) < COMPILERS:
            name = waiting.popleft()
            command = [sys.executable, "-m", "benchmarks.gpu.run", *arguments, "--only", name]
            running[subprocess.Popen(command)] = name
        for process in [one for one in running if one.poll() is not None]:
            name = running.pop(process)
            if process.returncode:
                failed.append(name)
        time.sleep(0.05)
    for process in running:
        process.kill()
    late = [*running.values(), *waiting]
    remark = "; ".join(
        f"{what}: {', '.join(names)}" for what, names in (("failed", failed), ("not in time", late)) if names
    )
    report.add("kernels compiled", f"in {time.perf_counter() - began:.0f} s", remark)


def check_kernels(report: Report, sizes: Sizes) -> None:
    found = checks.run(sizes)
    failed = [check for check in found if not check[1] <= check[2]]
    for name, error, most in failed:
        print(f"  WRONG {name}: {error:.2g}, at most {most:.2g}", flush=True)
    worst = max(found, key=lambda check: check[1] / max(check[2], 1e-12))
    report.failed |= bool(failed)
    report.add(
        "kernels right", f"{len(found) - len(failed)} of {len(found)}", f"nearest its bound: {worst[0]}, {worst[1]:.1e}"
    )


def measure(report: Report, sizes: Sizes, host: Device | None) -> None:
    config = sizes.config
    results: dict[str, float] = {}

    def machine() -> None:
        copied, product = speed.limits(sizes)
        results.update(copied=copied, product=product)
        report.add("memory, measured by a copy", f"{copied / 1e9:.0f} GB/s")
        report.add(f"matrix product {sizes.matrix}³", f"{product / 1e12:.0f} TFLOP/s")

    report.attempt("the machine's limits", machine)
    length = sizes.context // 4

    def steps(quantization: str) -> None:
        label = quantization or str(sizes.dtype).removeprefix("torch.")
        subject = speed.runner(sizes, quantization, host)
        if not quantization:
            eager = speed.decoding(sizes, subject, 1, length)
            report.add(f"{label}, batch 1 without graphs", f"{1 / eager:.1f} tok/s")
        subject.capture()
        report.add(f"{label}, graphs", subject.graphs.failure or "captured")
        width = 1 if quantization in {"fp8", "w8a8"} else 0.5 if quantization == "int4" else sizes.dtype.itemsize
        moved = matrix_numbers(config) * width + kv_numbers(config) * length * sizes.dtype.itemsize
        for rows in sorted({1, 8, 32, 128, sizes.rows}):
            if rows > sizes.rows:
                continue
            seconds = speed.decoding(sizes, subject, rows, length if rows < 64 else length // 2)
            results[f"{label} {rows}"] = rows / seconds
            remark = ""
            if rows == 1 and "copied" in results:
                share = moved / seconds / results["copied"]
                remark = f"{share:.0%} of the bandwidth" + (" (goal 80 %)" if not quantization else "")
            report.add(f"{label}, decoding {rows} rows", f"{rows / seconds:.1f} tok/s", remark)
        if not quantization:
            rows = min(32, sizes.rows)
            seconds = speed.decoding(sizes, subject, rows, length, sampling=CHOSEN)
            report.add(f"{label}, decoding {rows} rows by top-k and top-p", f"{rows / seconds:.1f} tok/s")
        seconds = speed.prefilling(sizes, subject)
        # The head is multiplied with the last token of each prompt alone.
        work = 2 * (matrix_numbers(config) - config.vocab_size * config.hidden_size) * sizes.step / seconds
        share = f"{work / results['product']:.0%} of the product's rate" if "product" in results else ""
        report.add(
            f"{label}, prefill", f"{sizes.step / seconds:.0f} tok/s", share + ("" if quantization else " (goal 60 %)")
        )
        if not quantization:
            report.attempt(f"{label}, adapters", lambda: adapters.measure(sizes, subject, length, report.add))
        if quantization in {"", "fp8"}:
            results[f"{label} mixed"] = speed.ours(sizes, subject)
            report.add(f"{label}, mixed workload", f"{results[f'{label} mixed']:.0f} tok/s")

    base = str(sizes.dtype).removeprefix("torch.")

    def right() -> None:
        likeliest, tokens = speed.likely(little(sizes), host)
        report.failed |= likeliest < tokens
        report.add("float32, transformers' likeliest tokens", f"{likeliest} of {tokens}", "goal: all")

    def far() -> None:
        longer = replace(sizes, context=sizes.longest, rows=min(8, sizes.rows))
        subject = speed.runner(longer, "", host)
        subject.capture()
        for length in (sizes.context, sizes.longest * 9 // 10):
            seconds = speed.decoding(longer, subject, 1, length)
            report.add(f"{base}, decoding 1 row of {length} tokens in {sizes.longest}", f"{1 / seconds:.1f} tok/s")

    report.attempt("answers", right)
    for quantization in QUANTIZATIONS:
        report.attempt(quantization or base, lambda quantization=quantization: steps(quantization))
    report.attempt("long contexts", far)
    if f"{base} 1" in results and "fp8 1" in results:
        report.add("fp8 over 16 bits, batch 1", f"{results['fp8 1'] / results[f'{base} 1']:.2f} ×", "goal 1.6 ×")

    def peer() -> None:
        rate, done = speed.peers(sizes, PEER)
        report.add(
            "transformers' continuous batching, mixed", f"{rate:.0f} tok/s", f"{done} of {sizes.requests} answers done"
        )
        if f"{base} mixed" in results:
            report.add("ours over it", f"{results[f'{base} mixed'] / rate:.1f} ×", "goal 5 ×")

    report.attempt("transformers' continuous batching", peer)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny shapes on the CPU, in Triton's interpreter")
    parser.add_argument("--only", metavar="UNIT", help="have the kernels of one part compiled, and measure nothing")
    arguments = parser.parse_args()
    is_smoke: bool = arguments.smoke
    if not is_smoke and not torch.cuda.is_available():
        print("there is no GPU here; --smoke shows that the script works without one", file=sys.stderr)
        return 2
    sizes = smoke() if is_smoke else full()
    if arguments.only is not None:
        units(sizes)[arguments.only]()
        return 0
    host: Device | None = None
    if is_smoke:
        from tests.inference.cuda.host import HostDevice

        torch.set_num_threads(1)
        host = HostDevice()
    import transformers
    import triton

    report = Report()
    where = torch.cuda.get_device_name() if not is_smoke else "CPU, interpreter"
    report.add(
        "machine",
        where,
        f"torch {torch.__version__}, triton {triton.__version__}, transformers {transformers.__version__}",
    )
    # In the interpreter nothing is compiled: one part shows that the processes work.
    names, given = (["sampling"], ["--smoke"]) if is_smoke else (list(units(sizes)), [])
    report.attempt("compiling", lambda: compile_first(report, names, given))
    report.attempt("kernels", lambda: check_kernels(report, sizes))
    measure(report, sizes, host)
    print("\n" + report.table())
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
