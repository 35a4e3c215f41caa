"""The Debian lock: closed closures, no host, and no edit by hand."""

from pathlib import Path

import pytest

from qualify.core.errors import Refusal, UsageError
from qualify.pins.debian import (
    Bootstrap,
    Busybox,
    Closure,
    DebianLock,
    DebianPackage,
    Release,
    debian_lock_bytes,
    parse_debian_lock,
    read_debian_input,
    read_debian_lock,
)
from qualify.pins.elf import busybox_of

LOCKS = Path(__file__).parents[3] / "locks"


def a_package(name, version="1.0"):
    file = f"{name}_{version}_amd64.deb"
    return DebianPackage(
        file=file, name=name, path=f"pool/main/d/{name}/{file}", sha256="a" * 64, size=10,
        version=version,
    )  # fmt: skip


def a_lock(**changes):
    content = {
        "set": "debian",
        "purpose": "a lock for tests",
        "architecture": "amd64",
        "release": Release(codename="trixie", date="Sat, 21 Nov 2026", version="13.8"),
        "bootstrap": Bootstrap(busybox=Busybox(nar_sha256="b" * 64)),
        "closures": {"base": Closure(packages=("one", "two"), seeds=("one",))},
        "packages": (a_package("one"), a_package("two")),
    }
    return DebianLock(**(content | changes))


def test_a_lock_reads_back_as_it_was_written():
    assert parse_debian_lock(debian_lock_bytes(a_lock()), "debian.json") == a_lock()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"size":10', b'"size":11', "edited by hand"),
        (b"a" * 64, b"c" * 64, "edited by hand"),
        (b"b" * 64, b"c" * 64, "edited by hand"),
        (b'"sha256":"' + b"a" * 64 + b'",', b"", "sha256"),
        (b'"path":"pool', b'"path":"http://host/pool', "pattern"),
        (b'"path":"pool/main', b'"path":"pool/../main', "edited by hand"),
        (b'"packages":["one","two"]', b'"packages":["one","gone"]', "out of order"),
        (b'"packages":["one","two"]', b'"packages":["one","zzz"]', "which the lock does not hold"),
        (b'"file":"two_1.0', b'"file":"two_1.1', "path and file differ"),
        (b"{\n", b"{\n ", "layout"),
        (b"qualify-debian-lock/1", b"qualify-lock/1", "schema"),
        (b'"set"', b'"url":"x","set"', "url"),
    ],
)
def test_an_edited_lock_is_refused(old, new, said):
    data = debian_lock_bytes(a_lock())
    assert old in data
    with pytest.raises(UsageError) as caught:
        parse_debian_lock(data.replace(old, new, 1), "debian.json")
    assert said in caught.value.what
    assert caught.value.fix


def test_the_committed_lock_holds_what_is_asked_for():
    lock, asked = read_debian_lock(LOCKS / "debian.json"), read_debian_input(LOCKS / "debian.in")
    assert lock.purpose == asked.purpose
    assert lock.release.codename == asked.release == "trixie"
    assert lock.closures.keys() == asked.closures.keys()
    for name, closure in lock.closures.items():
        assert closure.seeds == asked.closures[name].seeds
        assert set(closure.without) == set(asked.closures[name].without)
        assert set(closure.seeds) <= set(closure.packages)
        assert not set(closure.without) & set(closure.packages)


def test_the_closures_of_the_images_hold_base():
    lock = read_debian_lock(LOCKS / "debian.json")
    base = set(lock.closures["base"].packages)
    for name in ("runner", "llama-cpp-cpu", "vllm-cpu", "vllm-cuda"):
        assert base <= set(lock.closures[name].packages)
    cuda = set(lock.closures["vllm-cuda"].packages)
    assert {"gcc", "libc6-dev", "libc-bin", "libpython3.13-dev", "binutils"} <= cuda
    assert not {"bash", "dash", "coreutils"} & cuda


def test_a_closures_digest_follows_its_files_alone():
    lock = a_lock()
    more = a_lock(
        packages=(a_package("one"), a_package("three"), a_package("two")), purpose="another"
    )
    assert lock.closure_digest("base") == more.closure_digest("base")
    other = a_package("two").model_copy(update={"sha256": "d" * 64})
    changed = a_lock(packages=(a_package("one"), other))
    assert changed.closure_digest("base") != lock.closure_digest("base")


def test_an_unknown_closure_is_answered_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        a_lock().closure("nothing")
    assert caught.value.fix == "closures: base"


def written(tmp_path, text):
    path = tmp_path / "debian.in"
    path.write_text(text)
    return path


HEAD = "# purpose: test\n# release: trixie\n"


def test_a_closure_extends_another(tmp_path):
    path = written(tmp_path, HEAD + "[base]\nbb aa # why\n!xx yy zz\n[more: base]\ncc\n!ww\n")
    closures = read_debian_input(path).closures
    assert closures["base"].seeds == ("aa", "bb")
    assert closures["more"].seeds == ("aa", "bb", "cc")
    assert closures["more"].without == {"xx": ("yy", "zz"), "ww": ()}
    assert closures["base"].without == {"xx": ("yy", "zz")}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (HEAD + "a\n", ":3"),
        (HEAD + "[base]\na=1\n", ":4"),
        (HEAD + "[base]\nhttp://host/a\n", ":4"),
        (HEAD + "[more: base]\naa\n", ":3"),
        (HEAD + "[base]\naa\n[base]\nbb\n", ":5"),
        ("# purpose: test\n[base]\naa\n", ""),
        (HEAD, ""),
    ],
)
def test_a_wrong_line_is_named(tmp_path, text, line):
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_debian_input(path)
    assert caught.value.where == f"{path}{line}"


@pytest.mark.parametrize("data", [b"", b"not an archive", b"!<arch>\n", b"!<arch>\nx" * 20])
def test_what_is_no_package_gives_no_busybox(tmp_path, data):
    path = tmp_path / "busybox-static.deb"
    path.write_bytes(data)
    with pytest.raises(Refusal):
        busybox_of(path)
