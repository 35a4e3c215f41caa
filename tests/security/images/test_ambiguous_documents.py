"""Documents of an image that readers understand in several ways, or without end."""

from __future__ import annotations

import json
import re

import pytest

from qualify.images import ImageFault, open_image
from support.images import CONFIG, INDEX, MANIFEST, ImageBuilder, file, sha256

SOUND = ImageBuilder(layers=[[file("a", "good")]])
EVIL = ImageBuilder(layers=[[file("a", "evil")]])


def layout(tmp_path, *, index=None, manifest=None, config=None):
    """A layout in which each document may be changed as text; digests fit."""
    place = SOUND.layout(tmp_path / "image")
    EVIL.layout(tmp_path / "evil")

    def blob(data):
        (place / "blobs/sha256" / sha256(data).removeprefix("sha256:")).write_bytes(data)
        return {"digest": sha256(data), "size": len(data)}

    _, config_data, manifest_data = SOUND.blobs()
    changed = json.loads(manifest_data)
    new = (config or str)(config_data.decode()).encode()
    changed["config"] = {"mediaType": CONFIG, **blob(new)}
    data = (manifest or str)(json.dumps(changed)).encode()
    listed = {"schemaVersion": 2, "manifests": [{"mediaType": MANIFEST, **blob(data)}]}
    text = (index or str)(json.dumps(listed))
    (place / "index.json").write_text(text)
    return place


def test_the_layout_of_these_tests_is_sound(tmp_path):
    assert open_image(layout(tmp_path)).size > 0


def adding(text):
    """Adds a member at the end of a JSON object."""
    return lambda document: document[:-1] + ", " + text + "}"


def renaming(old, new):
    """Writes another name for one."""
    return lambda document: re.sub(f'"{old}":', f'"{new}":', document, count=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"manifest": adding('"Layers": []')},
        {"manifest": adding('"LAYERS": []')},
        {"manifest": adding('"layer\u017f": []')},
        {"manifest": adding('"layers": []')},
        {"manifest": adding('"Config": {}')},
        {"manifest": renaming("mediaType", "mediatype")},
        {"config": adding('"Config": {"User": "0"}')},
        {"config": adding('"config": {"User": "0"}')},
        {"config": renaming("Env", "env")},
        {"config": renaming("User", "USER")},
        {"config": renaming("diff_ids", "Diff_IDs")},
        {"index": adding('"Manifests": []')},
        {"index": adding('"manifests": []')},
        {"index": renaming("digest", "Digest")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_name_that_go_takes_for_another_is_refused(changes, tmp_path):
    with pytest.raises(ImageFault):
        open_image(layout(tmp_path, **changes))


def test_labels_and_annotations_may_have_any_names(tmp_path):
    labels = '"Labels": {"user": "x", "ENV": "y", "Layers": "z", "layers": "z"}'
    image = open_image(
        layout(
            tmp_path,
            config=lambda text: text.replace('"Labels": {}', labels),
            manifest=adding('"annotations": {"Config": "x", "config": "y"}'),
        )
    )
    assert image.labels["user"] == "x"


@pytest.mark.parametrize(
    "changes",
    [
        {"manifest": adding('"manifests": []')},
        {"index": adding('"layers": []')},
        {"manifest": lambda text: text.replace(MANIFEST, INDEX, 1)},
    ],
    ids=["manifest with manifests", "index with layers", "type of an index"],
)
def test_a_document_that_is_two_things_is_refused(changes, tmp_path):
    """CVE-2021-41190: one digest, taken for a manifest here and for an index there."""
    with pytest.raises(ImageFault):
        open_image(layout(tmp_path, **changes))


@pytest.mark.parametrize("value", [[], {}, 1, True])
@pytest.mark.parametrize("part", ["index", "manifest"])
def test_a_media_type_of_any_form_ends_in_an_error(part, value, tmp_path):
    def spoil(text):
        return re.sub(r'"mediaType": "[^"]*"', f'"mediaType": {json.dumps(value)}', text)

    with pytest.raises(ImageFault, match="media type"):
        open_image(layout(tmp_path, **{part: spoil}))


def test_indexes_that_name_each_other_many_times_are_stopped(tmp_path):
    """Four levels of a thousand entries each would be read a billion times."""
    place = layout(tmp_path)

    def write(document):
        data = json.dumps(document).encode()
        (place / "blobs/sha256" / sha256(data).removeprefix("sha256:")).write_bytes(data)
        return {"mediaType": INDEX, "digest": sha256(data), "size": len(data)}

    document = {"schemaVersion": 2, "manifests": []}
    for _ in range(4):
        document = {"schemaVersion": 2, "manifests": [write(document)] * 900}
    (place / "index.json").write_text(json.dumps(document))
    with pytest.raises(ImageFault, match="more than 1000 manifests"):
        open_image(place)


def test_a_name_in_a_message_is_on_one_line(tmp_path):
    made = ImageBuilder(layers=[[file("a")]], name="x\n\x1b[2Jall is well", architecture="a\nb")
    with pytest.raises(ImageFault) as caught:
        open_image(made.layout(tmp_path / "image"))
    assert str(caught.value).isprintable()
    assert "all is well" in str(caught.value)
