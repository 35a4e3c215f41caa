"""Tars made header by header, and the readers at hand: Python's tarfile, GNU tar, libarchive.

A reader gives `(path, kind, size, target)` of each member, and whether it is content with the tar.
"""

from __future__ import annotations

import codecs
import ctypes
import ctypes.util
import io
import re
import subprocess
import tarfile

BLOCK = 512
END = bytes(2 * BLOCK)


def header(name="a", size=0, kind=b"0", link="", magic=b"ustar\x0000", fields=None):
    """One header of 512 bytes with a right checksum; `fields` replaces bytes by position."""
    block = bytearray(BLOCK)
    for at, value in (
        (0, name.encode()), (100, b"0000644\0"), (108, b"0000000\0"), (116, b"0000000\0"),
        (124, b"%011o\0" % size), (136, b"00000000001\0"), (156, kind), (157, link.encode()),
        (257, magic), (329, b"0000000\0"), (337, b"0000000\0"), *(fields or {}).items(),
    ):  # fmt: skip
        block[at : at + len(value)] = value
    return signed(block)


def signed(block):
    """A header with its checksum made right."""
    block = bytearray(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name="a", data=b"one", **options):
    """A header and its bytes."""
    return header(name, options.pop("size", len(data)), **options) + filled(data)


def filled(data):
    """Bytes up to the end of a block."""
    return data + bytes(-len(data) % BLOCK)


def note(kind, data):
    """A header that says something of the next member."""
    return header("note", len(data), kind) + filled(data)


def record(key, value):
    """One record of an extended header."""
    value = value if isinstance(value, bytes) else value.encode()
    body = b" " + key.encode() + b"=" + value + b"\n"
    length = len(body) + 1
    while len(b"%d" % length) + len(body) != length:
        length += 1
    return b"%d" % length + body


def pax(*records, kind=b"x"):
    """An extended header of `(keyword, value)`."""
    return note(kind, b"".join(record(*each) for each in records))


# ── the readers ──────────────────────────────────────────────────────────────────────────────────


def plain(name):
    """A name as a place below the root."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def by_python(tar):
    """What Python's tarfile lists, and whether it is content."""
    kinds = {
        b"0": "f", b"\0": "f", b"7": "f", b"5": "d", b"2": "l", b"1": "h", b"3": "v", b"4": "v",
        b"6": "p",
    }  # fmt: skip
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
            for each in archive:
                kind = kinds.get(each.type, "?")
                target = plain(each.linkname) if kind == "h" else each.linkname
                found.append(
                    (
                        plain(each.name),
                        kind,
                        each.size if kind == "f" else 0,
                        target if kind in "lh" else "",
                    )
                )
    except (tarfile.TarError, ValueError):
        return found, False
    return found, True


def by_gnu(tar):
    """What GNU tar lists, and whether it is content."""
    done = subprocess.run(
        ["tar", "-tvf", "-", "--numeric-owner", "--quoting-style=escape", "-P"],
        input=tar, capture_output=True, check=False, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    found = []
    for line in done.stdout.decode("ascii", "replace").splitlines():
        match = re.fullmatch(r"(.)\S+ \S+ +(\S+) \S+ [0-9:.]+ (.*)", line)
        assert match is not None, line
        kind, size, name = match.groups()
        kind = {"-": "f", "C": "f", "c": "v", "b": "v"}.get(kind, kind)
        target = ""
        if kind == "l":
            name, _, target = name.partition(" -> ")
        elif kind == "h":
            name, _, target = name.partition(" link to ")
        found.append(
            (
                plain(unescaped(name)),
                kind,
                int(size) if kind == "f" else 0,
                plain(unescaped(target)) if kind == "h" else unescaped(target),
            )
        )
    return found, done.returncode == 0


def unescaped(text):
    """A name that GNU tar has shown in ASCII."""
    raw = codecs.escape_decode(text.replace("\\ ", " ").encode())[0]
    return raw.decode("utf-8", "surrogateescape")


def library():
    """libarchive, which bsdtar is made of."""
    found = ctypes.util.find_library("archive")
    if found is None:
        return None
    loaded = ctypes.CDLL(found)
    for name in ("archive_read_new", "archive_entry_pathname", "archive_entry_hardlink",
                 "archive_entry_symlink"):  # fmt: skip
        getattr(loaded, name).restype = (
            ctypes.c_void_p if name == "archive_read_new" else ctypes.c_char_p
        )
    loaded.archive_entry_size.restype = ctypes.c_int64
    return loaded


LIBARCHIVE = library()


def by_libarchive(tar):
    """What libarchive lists, and whether it is content."""
    lib = LIBARCHIVE
    assert lib is not None
    handle = ctypes.c_void_p(lib.archive_read_new())
    lib.archive_read_support_format_tar(handle)
    found, entry = [], ctypes.c_void_p()
    status = lib.archive_read_open_memory(handle, tar, ctypes.c_size_t(len(tar)))
    while status == 0 and (status := lib.archive_read_next_header(handle, ctypes.byref(entry))) in (
        0, -20,
    ):  # fmt: skip
        status = 0
        path, hard, soft = (
            (get(entry) or b"").decode("utf-8", "surrogateescape")
            for get in (
                lib.archive_entry_pathname,
                lib.archive_entry_hardlink,
                lib.archive_entry_symlink,
            )
        )
        kind = {0o10: "f", 0o4: "d", 0o12: "l", 0o2: "v", 0o6: "v", 0o1: "p"}.get(
            lib.archive_entry_filetype(entry) >> 12, "?"
        )
        if hard:
            kind = "h"
        size = lib.archive_entry_size(entry) if kind == "f" else 0
        found.append((plain(path), kind, size, plain(hard) if kind == "h" else soft))
    lib.archive_read_free(handle)
    return found, status == 1


READERS = {"tarfile": by_python, "GNU tar": by_gnu} | (
    {"libarchive": by_libarchive} if LIBARCHIVE is not None else {}
)
