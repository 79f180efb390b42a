"""Building the C sources: once, by any number of processes, or not at all with the reason."""

from __future__ import annotations

import multiprocessing
import os
import select
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from inference.architectures.load import kernel_folder
from inference.architectures.tiers import choose
from inference.errors import ModelRefusedError
from inference.kernels import build as building
from inference.kernels import library as loading
from inference.kernels.build import LEVELS, BuildError, best_level, build, processor_flags
from inference.kernels.library import load
from tests.inference.c_kernels import load_kernels
from tests.inference.work_folders import leave

COMPILER = """#!/bin/sh
echo run >> "$(dirname "$0")/runs"
while [ "$1" != "-o" ]; do shift; done
sleep 0.05
echo library > "$2"
"""

EMPTY = """#!/bin/sh
echo run >> "$(dirname "$0")/runs"
while [ "$1" != "-o" ]; do shift; done
echo 'int nothing;' | cc -x c - -shared -o "$2"
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "compiler"
    script.write_text(COMPILER)
    script.chmod(0o700)
    monkeypatch.setenv("CC", str(script))
    return script


def test_a_library_is_built_once(tmp_path: Path, compiler: Path) -> None:
    folder = tmp_path / "built"
    first = build(folder, "plain")
    assert build(folder, "plain") == first
    assert (tmp_path / "runs").read_text() == "run\n"
    assert [file.name for file in folder.iterdir()] == [first.name]


def test_what_killed_builds_left_goes_a_day_later(tmp_path: Path, compiler: Path) -> None:
    staying = leave(tmp_path / "built", ".building-")
    file = build(tmp_path / "built", "plain")
    assert set((tmp_path / "built").iterdir()) == staying | {file}


def test_levels_and_compilers_have_their_own_files(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {build(tmp_path / "built", level) for level in LEVELS}
    monkeypatch.setenv("CC", f"{compiler} -g")
    files.add(build(tmp_path / "built", "plain"))
    assert len(files) == len(LEVELS) + 1


def test_a_change_of_a_source_is_built_again(tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "one.c").write_text("int one;")
    monkeypatch.setattr(building, "__file__", str(sources / "build.py"))
    first = build(tmp_path / "built", "plain")
    (sources / "one.c").write_text("int two;")
    assert build(tmp_path / "built", "plain") != first


def _build(folder: Path) -> str:
    return str(build(folder, "plain"))


def test_processes_build_at_once(tmp_path: Path, compiler: Path) -> None:
    folder = tmp_path / "built"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        files = set(pool.map(_build, [folder] * 8))
    assert len(files) == 1
    assert Path(files.pop()).read_bytes().startswith(b"library\n")
    assert len(list(folder.iterdir())) == 1


def test_without_a_compiler_there_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    with pytest.raises(BuildError, match="there is no C compiler"):
        build(tmp_path / "built", "plain")


def test_a_failing_compiler_leaves_nothing(tmp_path: Path, compiler: Path) -> None:
    compiler.write_text("#!/bin/sh\necho 'simd.h:1: error: no such vector' >&2\nexit 1\n")
    with pytest.raises(BuildError, match="error: no such vector"):
        build(tmp_path / "built", "plain")
    assert list((tmp_path / "built").iterdir()) == []


@pytest.mark.parametrize("kept", [0, 4, 20])
def test_a_file_that_was_cut_is_built_again(tmp_path: Path, compiler: Path, kept: int) -> None:
    file = build(tmp_path / "built", "plain")
    whole = file.read_bytes()
    file.write_bytes(whole[:kept])
    assert build(tmp_path / "built", "plain") == file
    assert file.read_bytes() == whole
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_a_library_that_cannot_be_loaded_is_built_again_once(tmp_path: Path, compiler: Path) -> None:
    """As when the folder comes from another machine; an empty library lacks every function."""
    for script in (COMPILER, EMPTY):
        compiler.write_text(script)
        (tmp_path / "runs").write_text("")
        with pytest.raises(BuildError, match="can't be loaded"):
            load(tmp_path / "built", "plain")
        assert (tmp_path / "runs").read_text() == "run\nrun\n"
        file = build(tmp_path / "built", "plain")
        file.unlink()


def test_a_compiler_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.write_text(f"#!/bin/sh\nsleep 1000 & echo $! > {tmp_path}/child\necho started >&2\nwait\n")
    monkeypatch.setattr(building, "SECONDS", 1.0)
    with pytest.raises(BuildError, match="took more than"):
        build(tmp_path / "built", "plain")
    with suppress(ProcessLookupError):
        child = os.pidfd_open(int((tmp_path / "child").read_text()))
        assert select.select([child], [], [], 10)[0]  # it was killed, and dies when it has its turn
        os.close(child)
    assert list((tmp_path / "built").iterdir()) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -KILL $$", "was ended by SIGKILL"),
        ("printf 'a\\377 error\\n' >&2; exit 1", "a\ufffd error"),
        ("exit 3", "exit status 3"),
    ],
)
def test_how_a_compiler_failed_is_told(tmp_path: Path, compiler: Path, script: str, said: str) -> None:
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(BuildError, match=said):
        build(tmp_path / "built", "plain")


@pytest.mark.parametrize("named", ["cc 'unbalanced", "/", "/dev/null"])
def test_a_name_that_is_no_compiler_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("CC", named)
    with pytest.raises(BuildError, match=r"no C compiler|is no command"):
        build(tmp_path / "built", "plain")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_ours_is_the_reason(tmp_path: Path, compiler: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BuildError, match="Permission denied"):
        build(tmp_path / "built", "plain")


def test_the_level_follows_the_processor(tmp_path: Path) -> None:
    assert best_level(frozenset()) == "plain"
    assert best_level(frozenset(LEVELS["avx2"][1])) == "avx2"
    assert best_level(frozenset((*LEVELS["avx2"][1], *LEVELS["avx512-vnni"][1]))) == "avx512-vnni"
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma bmi2 f16c abm\n")
    assert best_level(processor_flags(cpuinfo)) == "avx2"
    assert processor_flags(tmp_path / "none") == frozenset()


@pytest.mark.slow
def test_an_older_compiler_builds_the_best_level_that_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        load_kernels("plain")
    except BuildError as error:
        pytest.skip(str(error))
    script = tmp_path / "older"
    script.write_text(
        '#!/bin/sh\ncase "$*" in *-mamx*|*avx512*|*v3*) echo "error: unknown option" >&2; exit 1; esac\n'
        f'while [ "$1" != "-o" ]; do shift; done\ncp "{build(kernel_folder(), "plain")}" "$2"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setattr(loading, "best_level", lambda: "avx512-amx")
    assert loading.load(tmp_path / "built").level == "plain"
    script.write_text('#!/bin/sh\necho "error: no memory" >&2; exit 1\n')
    with pytest.raises(BuildError, match="no memory"):
        loading.load(tmp_path / "other")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The levels that were built, of which none is."""
    levels: list[str] = []

    def build_one(folder: Path, level: str) -> str:
        levels.append(level)
        if len(levels) == 1:
            raise BuildError("the first time")
        return level

    monkeypatch.setattr(loading, "_built", build_one)
    return levels


def test_the_environment_chooses_the_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: list[str]) -> None:
    monkeypatch.setenv("SLUICE_KERNEL_LEVEL", "plain")
    with pytest.raises(BuildError):
        load(tmp_path)
    assert built == ["plain"]


def test_what_could_not_be_built_is_tried_again_by_the_next_that_needs_it(tmp_path: Path, built: list[str]) -> None:
    with pytest.raises(BuildError, match="the first time"):
        load(tmp_path, "plain")
    assert load(tmp_path, "plain") == load(tmp_path, "plain") == "plain"
    assert len(built) == 2


@pytest.mark.parametrize(
    ("level", "reason"),
    [
        ("avx3", "SLUICE_KERNEL_LEVEL=avx3 is none of avx512-amx,"),
        ("avx512", "needs what this processor hasn't: avx512"),
    ],
)
def test_a_level_that_cannot_be_had_refuses_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, reason: str
) -> None:
    """And it isn't computed slowly instead, as where there is no compiler."""
    monkeypatch.setenv("SLUICE_KERNEL_LEVEL", level)
    monkeypatch.setattr(building, "processor_flags", lambda: frozenset(LEVELS["avx2"][1]))
    with pytest.raises(ModelRefusedError, match=reason):
        choose(torch.float32, tmp_path)


def test_a_build_that_takes_long_is_told_while_it_does(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "may_end")
    compiler.write_text(COMPILER.replace("sleep 0.05", f'read -r line < "{tmp_path}/may_end"'))
    monkeypatch.setattr(building, "NOTICE_SECONDS", 0.01)
    warn = building.log.warning

    def told(*words: object) -> None:
        warn(*words)
        (tmp_path / "may_end").write_text("go on\n")

    monkeypatch.setattr(building.log, "warning", told)
    build(tmp_path / "built", "plain")
    assert "has compiled the kernels for more than 0.01 s" in caplog.text


def test_a_model_without_the_kernels_says_that_it_is_slower_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    assert "no C compiler" in choose(torch.float32, tmp_path).reason
    assert "three to five times as long" in caplog.text


def test_tiles_are_used_where_the_system_permits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "processor_flags", lambda: frozenset(LEVELS["avx512-amx"][1]))
    for permitted, level in ((True, "avx512-amx"), (False, "avx512-bf16")):
        monkeypatch.setattr(building, "tiles_are_permitted", lambda permitted=permitted: permitted)
        assert best_level() == level
