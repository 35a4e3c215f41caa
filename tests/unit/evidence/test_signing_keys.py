"""Keys: which files are taken, which are refused, and why."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa, x25519
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.evidence.signing.keys import (
    parse_public_key,
    read_public_key,
    read_signing_key,
    signing_key_path,
    write_new_key,
)


def write(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def pem(key: object, password: bytes | None = None) -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    made = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)  # type: ignore[attr-defined]
    assert isinstance(made, bytes)
    return made


def test_a_new_key_is_private_and_reads_back(tmp_path: Path) -> None:
    made = write_new_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert read_signing_key(tmp_path / "key").public == made.public
    assert "PRIVATE" not in repr(made)
    assert "Ed25519PrivateKey" not in repr(made)


def test_the_id_is_the_digest_of_the_public_key_as_openssl_writes_it(tmp_path: Path) -> None:
    made = write_new_key(tmp_path / "key")
    der = subprocess.run(
        ["openssl", "pkey", "-in", tmp_path / "key", "-pubout", "-outform", "DER"],
        check=True, capture_output=True,
    ).stdout  # fmt: skip
    from qualify.core.digests import digest_bytes

    assert made.public.id == digest_bytes(der)


def test_an_openssh_key_is_the_same_key_in_every_form(tmp_path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True
    )
    private = read_signing_key(tmp_path / "id")
    public = read_public_key(tmp_path / "id.pub")
    assert private.public == public
    assert parse_public_key(public.pem.encode(), "pem") == public
    assert parse_public_key(public.ssh.encode(), "ssh") == public


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666])
def test_a_key_that_others_can_read_or_change_is_refused(mode: int, tmp_path: Path) -> None:
    write_new_key(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(UsageError, match=rf"by others \(mode {mode:04o}\).*chmod 600") as error:
        read_signing_key(tmp_path / "key")
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(65537, 2048),
        ec.generate_private_key(ec.SECP256R1()),
        ed448.Ed448PrivateKey.generate(),
        x25519.X25519PrivateKey.generate(),
    ],
    ids=lambda key: type(key).__name__,
)
def test_a_key_of_another_kind_is_refused(key: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"key of another kind.*Ed25519"):
        read_signing_key(write(tmp_path / "key", pem(key)))
    public = key.public_key()  # type: ignore[attr-defined]
    data = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(UsageError, match=r"key of another kind.*Ed25519"):
        parse_public_key(data, "key")


def test_a_key_that_needs_a_passphrase_is_refused(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    with pytest.raises(UsageError, match="needs a passphrase"):
        read_signing_key(write(tmp_path / "pem", pem(key, b"secret")))
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", tmp_path / "ssh"], check=True
    )
    with pytest.raises(UsageError, match="needs a passphrase"):
        read_signing_key(tmp_path / "ssh")


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
     b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
     b"\x00" * 100, b"\xff" * 100],
)  # fmt: skip
def test_what_is_no_key_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no private key"):
        read_signing_key(write(tmp_path / "key", data))
    with pytest.raises(UsageError, match=r"is no public key|is a private key"):
        parse_public_key(data, "key")


def test_a_public_key_is_no_signing_key_and_a_private_one_is_never_taken_as_public(
    tmp_path: Path,
) -> None:
    made = write_new_key(tmp_path / "key")
    with pytest.raises(UsageError, match="is no private key"):
        read_signing_key(write(tmp_path / "pub", made.public.pem.encode()))
    with pytest.raises(UsageError, match="is a private key"):
        read_public_key(tmp_path / "key")


def test_a_key_in_a_project_or_in_evidence_is_refused_also_through_a_link(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    with pytest.raises(UsageError, match="lies in"):
        write_new_key(project / "key", [project])
    assert not (project / "key").exists()
    write_new_key(project / "key")
    (tmp_path / "link").symlink_to(project / "key")
    for path in (project / "key", tmp_path / "link", project / ".." / "project" / "key"):
        with pytest.raises(UsageError, match="lies in"):
            read_signing_key(path, [project])


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    write_new_key(tmp_path / "key")
    before = (tmp_path / "key").read_bytes()
    with pytest.raises(UsageError, match="already there"):
        write_new_key(tmp_path / "key")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(UsageError, match="already there"):
        write_new_key(tmp_path / "link")
    assert (tmp_path / "key").read_bytes() == before
    assert not (tmp_path / "nothing").exists()


def test_a_place_that_cannot_hold_a_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        write_new_key(tmp_path / "nowhere" / "key")
    with pytest.raises(UsageError, match="cannot be read"):
        read_signing_key(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"is no plain file|by others"):
        read_signing_key(tmp_path)
    with pytest.raises(UsageError, match="more than"):
        read_signing_key(write(tmp_path / "big", b"x" * 100_000))


def test_a_fifo_is_no_key(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(UsageError, match="is no plain file"):
        read_signing_key(tmp_path / "fifo")


@pytest.mark.parametrize(
    "raw", ["00" * 32, "01" + "00" * 31, "ec" + "ff" * 30 + "7f", "01" + "00" * 30 + "80"]
)
def test_a_public_key_that_anybody_can_sign_for_is_refused(raw: str) -> None:
    import base64

    blob = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + bytes.fromhex(raw)
    with pytest.raises(UsageError, match="anybody can sign"):
        parse_public_key(b"ssh-ed25519 " + base64.b64encode(blob), "key")


def test_the_key_is_the_callers_then_the_environments_then_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("QUALIFY_SIGNING_KEY", raising=False)
    assert signing_key_path(None) is None
    usual = tmp_path / "qualify" / "signing-key"
    usual.parent.mkdir()
    write_new_key(usual)
    assert signing_key_path(None) == usual
    monkeypatch.setenv("QUALIFY_SIGNING_KEY", "/elsewhere")
    assert signing_key_path(None) == Path("/elsewhere")
    assert signing_key_path("given") == Path("given")


def test_a_user_without_a_home_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUALIFY_SIGNING_KEY", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    def nobody() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", staticmethod(nobody))
    assert signing_key_path(None) is None
