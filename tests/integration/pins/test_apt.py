"""The real apt in a root of our own: what a machine accepts unsigned is not accepted there."""

from __future__ import annotations

import pytest

from qualify.core.errors import UsageError
from qualify.pins.apt import SOURCES_VARIABLE, PrivateApt
from support.debian_archive import make_archive

CARELESS = """\
Acquire::AllowInsecureRepositories "true";
acquire::allowweakrepositories "1";
Acquire::AllowDowngradeToInsecureRepositories "yes";
Acquire::AllowReleaseInfoChange "true";
Acquire::Check-Valid-Until "false";
Acquire::Check-Date "false";
Acquire::Max-ValidTime::Debian "1";
Acquire::https::Verify-Peer "false";
Acquire::https::mirror.invalid::Verify-Host "false";
Acquire::gpgv::Options { "--ignore-time-conflict"; };
APT::Get::AllowUnauthenticated "true";
APT::Get::Force-Yes "true";
Acquire::http::Proxy "http://proxy.invalid:3128";
"""


@pytest.fixture
def careless(tmp_path, monkeypatch):
    """A machine whose apt takes anything."""
    settings = tmp_path / "machine.conf"
    settings.write_text(CARELESS)
    monkeypatch.setenv("APT_CONFIG", str(settings))


def settings_of(apt):
    rows = (line.split(" ", 1) for line in apt.run("apt-config", "dump").splitlines())
    return {row[0].lower(): row[1].strip('";') for row in rows if len(row) == 2}


def is_off(value):
    return value in ("", "false", "0", "no")


def test_what_a_careless_machine_sets_is_left_behind(careless, tmp_path):
    found = settings_of(PrivateApt(tmp_path / "root", "trixie"))
    for name in (
        "acquire::allowinsecurerepositories", "acquire::allowweakrepositories",
        "acquire::allowdowngradetoinsecurerepositories", "acquire::allowreleaseinfochange",
        "apt::get::allowunauthenticated", "apt::get::force-yes",
    ):  # fmt: skip
        assert is_off(found[name]), name
    assert found["acquire::check-valid-until"] == "true"
    assert found["acquire::check-date"] == "true"
    left = ("verify-peer", "verify-host", "gpgv", "validtime")
    assert [name for name in found if any(part in name for part in left)] == []


def test_the_machine_s_proxy_comes_along(careless, tmp_path):
    found = settings_of(PrivateApt(tmp_path / "root", "trixie"))
    assert found["acquire::http::proxy"] == "http://proxy.invalid:3128"


def test_an_unsigned_archive_is_refused_on_a_careless_machine(careless, tmp_path, monkeypatch):
    sources = make_archive(tmp_path / "mirror")
    monkeypatch.setenv(SOURCES_VARIABLE, str(sources))
    apt = PrivateApt(tmp_path / "root", "trixie")
    apt.write_sources()
    apt.run("apt-get", "update")  # a folder of this machine, named as trusted: the control
    sources.write_text(sources.read_text().replace("[trusted=yes] ", ""))
    apt = PrivateApt(tmp_path / "other", "trixie")
    apt.write_sources()
    with pytest.raises(UsageError, match="not signed"):
        apt.run("apt-get", "update")


@pytest.mark.parametrize(
    "option",
    ["trusted=yes", " Trusted=yes ", "arch=amd64 trusted=true", "allow-insecure=yes",
     "allow-weak=1", "allow-downgrade-to-insecure=yes", "trusted+=yes"],
)  # fmt: skip
def test_an_archive_that_is_trusted_without_a_signature_is_refused(option, tmp_path, monkeypatch):
    sources = tmp_path / "sources.list"
    sources.write_text(f"# ours\ndeb [{option}] https://mirror.invalid/debian trixie main\n")
    monkeypatch.setenv(SOURCES_VARIABLE, str(sources))
    with pytest.raises(UsageError, match="line 2 says") as caught:
        PrivateApt(tmp_path / "root", "trixie").write_sources()
    assert (caught.value.where, "signed-by" in caught.value.fix) == (str(sources), True)


@pytest.mark.parametrize(
    "line",
    [
        "deb https://mirror.invalid/debian trixie main",
        "deb [trusted=no] https://mirror.invalid/debian trixie main",
        "deb [signed-by=/usr/share/keyrings/x.gpg] https://mirror.invalid/debian trixie main",
        "# deb [trusted=yes] https://mirror.invalid/debian trixie main",
        "deb [trusted=yes] file:/srv/mirror trixie main",
    ],
)
def test_a_signed_archive_and_a_folder_of_this_machine_are_taken(line, tmp_path, monkeypatch):
    sources = tmp_path / "sources.list"
    sources.write_text(f"{line}\n")
    monkeypatch.setenv(SOURCES_VARIABLE, str(sources))
    apt = PrivateApt(tmp_path / "root", "trixie")
    apt.write_sources()
    assert (apt.root / "etc/sources.list").read_text() == f"{line}\n"
    if "mirror.invalid" in line and not line.startswith("#"):
        assert apt.archives() == ["https://mirror.invalid/debian/"]
