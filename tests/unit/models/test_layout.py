"""Addresses in the store, digests of file lists, and what people read."""

from pathlib import Path

import pytest

from qualify.manifests.kinds import Model
from qualify.models.errors import bytes_text
from qualify.models.layout import Layout, files_digest, store_root


def model_of(*files):
    return Model.model_validate(
        {
            "id": "tiny",
            "repository": "example/tiny",
            "format": "safetensors",
            "licence": {"spdx": "MIT"},
            "files": [{"path": p, "size": s, "sha256": d * 64} for p, s, d in files],
        }
    )


def test_the_digest_of_files_does_not_depend_on_their_order():
    one, two = ("a.bin", 1, "a"), ("b.bin", 2, "b")
    assert files_digest(model_of(one, two)) == files_digest(model_of(two, one))


@pytest.mark.parametrize("changed", [("c.bin", 1, "a"), ("a.bin", 2, "a"), ("a.bin", 1, "b")])
def test_path_size_and_hash_each_change_the_digest(changed):
    assert files_digest(model_of(("a.bin", 1, "a"))) == files_digest(model_of(("a.bin", 1, "a")))
    assert files_digest(model_of(changed)) != files_digest(model_of(("a.bin", 1, "a")))


def test_a_link_leads_from_the_snapshot_to_the_blob_wherever_the_store_lies():
    model = model_of(("deep/er/a.bin", 1, "a"))
    layout = Layout(Path("/anywhere"))
    file = model.files[0]
    target = layout.link_target(model, file)
    assert not target.startswith("/")
    place = (layout.link(model, file).parent / target).as_posix()
    assert Path(place).parts[-2:] == ("blobs", "a" * 64)


def test_the_store_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("QUALIFY_MODEL_STORE", raising=False)
    assert store_root() == tmp_path / "qualify" / "models"
    monkeypatch.setenv("QUALIFY_MODEL_STORE", str(tmp_path / "shared"))
    assert store_root() == tmp_path / "shared"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (98_362_432, "98.4 MB"), (1_117_320_768, "1.12 GB")],
)
def test_sizes_are_written_for_people(count, text):
    assert bytes_text(count) == text
