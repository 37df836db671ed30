"""Writing: a file or folder has its final name only when it is whole; manifests tell when it no longer is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stage_helpers import sign_manifest

from bertpt.errors import BertptError, RequestError
from bertpt.files import (
    check_hashes,
    fingerprint,
    named_write_faults,
    read_json,
    read_manifest,
    sha256_file,
    staged_directory,
    write_file,
    write_json,
    write_manifest,
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def in_process(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, encoding="utf-8", check=False)


# --- folders --------------------------------------------------------------------------------------------------------


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "final"
    with staged_directory(final) as aside:
        (aside / "inner").mkdir()
        (aside / "inner" / "a").write_text("1", encoding="utf-8")
        assert not final.exists()
    assert (final / "inner" / "a").read_text(encoding="utf-8") == "1"
    assert names(final.parent) == {"final"}


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_folder_and_nothing_else(tmp_path: Path, fault: type[BaseException]) -> None:
    final = tmp_path / "final"
    with staged_directory(final) as aside:
        (aside / "a").write_text("old", encoding="utf-8")

    def fail() -> None:
        with staged_directory(final) as aside:
            (aside / "a").write_text("new", encoding="utf-8")
            raise fault

    with pytest.raises(fault):
        fail()
    assert names(tmp_path) == {"final"}
    assert (final / "a").read_text(encoding="utf-8") == "old"


def test_a_success_replaces_the_old_folder_whole(tmp_path: Path) -> None:
    final = tmp_path / "final"
    for name in ("a", "b"):
        with staged_directory(final) as aside:
            (aside / name).touch()
    assert names(final) == {"b"}
    assert names(tmp_path) == {"final"}


def test_a_killed_process_leaves_no_folder_of_the_final_name(tmp_path: Path) -> None:
    code = """
import os, pathlib
from bertpt.files import staged_directory
with staged_directory(pathlib.Path("final")) as aside:
    (aside / "a").touch()
    os._exit(9)
"""
    assert in_process(code, tmp_path).returncode == 9
    assert not (tmp_path / "final").exists()
    with staged_directory(tmp_path / "final"):
        pass
    assert (tmp_path / "final").is_dir()


# --- full, read-only and forbidden disks ----------------------------------------------------------------------------

LIMITED = """
import pathlib, resource, sys
from bertpt.errors import BertptError
from bertpt.files import staged_directory, write_file
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    if sys.argv[1] == "folder":
        with staged_directory(pathlib.Path("final")) as aside:
            (aside / "small").write_bytes(bytes(10))
            (aside / "big").write_bytes(bytes(5000))
    else:
        write_file(pathlib.Path("final"), bytes(5000))
except BertptError as error:
    print(error)
"""


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_disk_that_takes_no_more_is_one_line_and_leaves_no_part(tmp_path: Path, what: str) -> None:
    # A limit on the size of files makes write() fail half-way, as a full disk does.
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, what], cwd=tmp_path, capture_output=True, encoding="utf-8", check=False
    )
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith("final: cannot write: File too large (")
    assert line.endswith(" MiB free)")
    assert names(tmp_path) == set()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_no_space_left_names_the_path_and_the_space(tmp_path: Path) -> None:
    with (
        pytest.raises(BertptError, match=r"^[^\n]*final: cannot write: No space left on device \([0-9,]+ MiB free\)$"),
        named_write_faults(tmp_path / "not" / "yet" / "final"),
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"x")


def test_a_file_that_cannot_be_found_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), named_write_faults(tmp_path):
        (tmp_path / "missing").read_bytes()


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BertptError, match="below: cannot write: "):
        write_file(tmp_path / "file" / "below", "x")
    with pytest.raises(BertptError, match="final: cannot write: "), staged_directory(tmp_path / "file" / "a" / "final"):
        pass
    with pytest.raises(BertptError, match="cannot write: File name too long"):
        write_file(tmp_path / ("n" * 250), "x")
    assert names(tmp_path) == {"file"}


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_with_lf_and_utf8(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_file(path, "größe\n")
    write_file(path, "größe\r\nb\n")
    assert path.read_bytes() == "größe\r\nb\n".encode()
    assert names(path.parent) == {"file.txt"}


def test_json_that_holds_nan_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"ä": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert read_json(path) == {"ä": 1}
    assert names(tmp_path) == {"a.json"}


@pytest.mark.parametrize("content", [b"{", b"", b"\xff", b'{"a": 1}x'])
def test_a_damaged_json_is_one_line_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(RequestError) as caught:
        read_json(path)
    (fault,) = caught.value.faults
    assert fault.startswith(f"{path}: ")
    assert "\n" not in fault


def test_a_hash_is_that_of_sha256sum(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert sha256_file(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_fingerprint_depends_on_values_and_not_on_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert len({fingerprint(value) for value in ({"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": [1]}, {"b": 1})}) == 5


# --- manifests ------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Path:
    directory = tmp_path / "made"
    with staged_directory(directory) as aside:
        write_file(aside / "a.bin", b"12345")
        write_file(aside / "inner" / "b.bin", b"")
        write_manifest(aside, stage="prepare", key="k", inputs={"x": "1"}, settings={"s": 2}, counts={"rows": 3})
    return directory


def test_a_manifest_tells_what_was_made_of_what(made: Path) -> None:
    manifest = read_manifest(made)
    assert manifest is not None
    assert (manifest["stage"], manifest["key"], manifest["inputs"]) == ("prepare", "k", {"x": "1"})
    assert (manifest["settings"], manifest["counts"]) == ({"s": 2}, {"rows": 3})
    assert manifest["files"]["a.bin"] == {"bytes": 5, "sha256": sha256_file(made / "a.bin")}
    assert manifest["files"].keys() == {"a.bin", "inner/b.bin"}
    assert str(made.parent) not in json.dumps(manifest)


def test_a_folder_without_a_manifest_is_unfinished(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    assert read_manifest(tmp_path / "nowhere") is None


def test_equal_content_has_an_equal_fingerprint_wherever_it_lies(tmp_path: Path) -> None:
    prints = []
    for name, content in (("one", b"1"), ("two", b"1"), ("three", b"2")):
        write_file(tmp_path / name / "a", content)
        manifest = write_manifest(tmp_path / name, stage="s", key="k", inputs={}, settings={}, counts={})
        prints.append(manifest["fingerprint"])
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda made: (made / "a.bin").unlink(), "missing, the manifest says 5 bytes"),
        (lambda made: (made / "a.bin").write_bytes(b"1234"), "4 bytes, the manifest says 5 bytes"),
        (lambda made: (made / "inner" / "b.bin").write_bytes(b"x"), "1 bytes, the manifest says 0 bytes"),
        (lambda made: (made / "manifest.json").write_text("{", encoding="utf-8"), "not readable as JSON"),
        (lambda made: (made / "manifest.json").write_text("[]", encoding="utf-8"), "format 1 expected"),
        (lambda made: (made / "manifest.json").write_text('{"format": 2}', encoding="utf-8"), "format 1 expected"),
        (lambda made: (made / "manifest.json").write_text('{"format": 1}', encoding="utf-8"), "format 1 expected"),
    ],
)
def test_a_damaged_folder_is_refused_with_what_to_do(made: Path, damage: object, says: str) -> None:
    assert callable(damage)
    damage(made)
    with pytest.raises(RequestError) as caught:
        read_manifest(made)
    (fault,) = caught.value.faults
    assert says in fault
    assert str(made) in fault


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_forbidden_place_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BertptError, match="cannot write: Permission denied"), staged_directory(tmp_path / "final"):
        pass


def test_a_changed_byte_is_found_by_the_hash(made: Path) -> None:
    manifest = read_manifest(made)
    assert manifest is not None
    check_hashes(made, manifest)
    (made / "a.bin").write_bytes(b"12346")
    assert read_manifest(made) == manifest
    with pytest.raises(RequestError, match=r"a\.bin: damaged: its SHA-256"):
        check_hashes(made, manifest)


# --- what others have left or put there -----------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="needs locks of POSIX")
def test_what_a_killed_writer_of_a_file_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = """
import os, pathlib
from bertpt.locks import claimed_file
with claimed_file(pathlib.Path("a.json")) as file:
    file.write(b"half")
    file.flush()
    os._exit(9)
"""
    assert in_process(code, tmp_path).returncode == 9
    (left,) = names(tmp_path)
    assert left.startswith(".a.json.")
    (tmp_path / ".b.json.1.tmp").touch()  # of another file
    write_json(tmp_path / "a.json", 1)
    assert names(tmp_path) == {"a.json", ".b.json.1.tmp"}


@pytest.mark.skipif(os.name != "posix", reason="needs locks of POSIX")
def test_a_file_that_another_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    code = """
import pathlib, sys
from bertpt.locks import claimed_file
with claimed_file(pathlib.Path("a.json")) as file:
    file.write(b"theirs")
    file.flush()
    print("ready", flush=True)
    sys.stdin.read()
    pathlib.Path(file.name).replace("a.json")
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        write_file(tmp_path / "a.json", "ours")
        assert (tmp_path / "a.json").read_text(encoding="utf-8") == "ours"
        process.communicate("")
    assert process.returncode == 0
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == "theirs"
    assert names(tmp_path) == {"a.json"}


@pytest.mark.skipif(os.name != "posix", reason="links of POSIX")
def test_links_are_not_followed_on_write(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("years of work", encoding="utf-8")
    place = tmp_path / "place"
    place.mkdir()
    for name in ("a.json", f".a.json.{os.getpid()}.tmp"):
        (place / name).symlink_to(precious)
    (place / "folder").symlink_to(tmp_path / "elsewhere")
    (place / f".made.{os.getpid()}.tmp").symlink_to(tmp_path, target_is_directory=True)
    write_json(place / "a.json", 1)
    assert precious.read_text(encoding="utf-8") == "years of work"
    assert not (place / "a.json").is_symlink()
    with pytest.raises(BertptError, match="folder: cannot write"), staged_directory(place / "folder"):
        pass
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(BertptError, match="made: cannot write"), staged_directory(place / "made"):
        pass
    assert precious.exists()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "", "..\\secret", "."])
def test_a_manifest_that_names_a_file_outside_its_folder_is_refused(made: Path, name: str) -> None:
    manifest = read_manifest(made)
    assert manifest is not None
    manifest["files"][name] = {"bytes": 0, "sha256": "0" * 64}
    sign_manifest(made, manifest)
    with pytest.raises(RequestError, match="names a file outside its folder"):
        read_manifest(made)


def test_json_of_endless_depth_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" * 1_000_000, encoding="utf-8")
    with pytest.raises(RequestError, match=r"a\.json: not readable as JSON"):
        read_json(tmp_path / "a.json")


def test_what_was_made_meanwhile_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    def make(**options: bool) -> None:
        with staged_directory(tmp_path / "final", **options):
            (tmp_path / "final").mkdir(exist_ok=True)
            (tmp_path / "final" / "theirs").touch()

    with pytest.raises(BertptError, match="another process has made it meanwhile; the same command goes on"):
        make(replace=False)
    assert names(tmp_path / "final") == {"theirs"}
    make()
    assert names(tmp_path) == {"final"}
    assert names(tmp_path / "final") == set()
