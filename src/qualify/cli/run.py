"""`qualify run ROW`: run trials and give a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from qualify.cli.run_output import Display
    from qualify.evidence.ledger import Ledger
    from qualify.manifests.catalog import Catalog
    from qualify.manifests.configuration import Configuration
    from qualify.runner.progress import Reporter
    from qualify.runner.run import Request, Result


@click.command()
@click.argument("row", metavar="ROW")
@click.option("--suite", metavar="SUITE", help="Suite to run (default: the row's first).")
@click.option(
    "--trials",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Trials of each scenario (default: as many as the policy needs).",
)
@click.option(
    "--experimental", is_flag=True, help="Mark the trials so that no assessment counts them."
)
@click.option("--seed", metavar="TEXT", help="Choose the variant; implies --experimental.")
@click.option(
    "--image",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Image that a row with placement image runs in (default: $QUALIFY_IMAGE).",
)
@click.option("--offline", is_flag=True, help="Never acquire a model.")
@click.option("--approve-licence", metavar="SPDX", help="Approve the model's licence by name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def run(ctx: click.Context, row: str, suite: str | None, trials: int | None,
        experimental: bool, seed: str | None, image: Path | None, offline: bool,
        approve_licence: str | None, as_json: bool) -> int:  # fmt: skip
    """Run trials of a matrix row and give a verdict.

    Exit code 0 only when the row is qualified for the suite; 10 for any other verdict.
    """
    from qualify.assessment.rules import DEFAULT_POLICY
    from qualify.cli.context import catalog as load
    from qualify.cli.context import results_folder
    from qualify.cli.run_output import Display
    from qualify.runner.run import Request

    catalog = load(ctx)
    request = Request(
        row=row,
        suite=_suite(catalog, row, suite),
        trials=trials or catalog.policy(DEFAULT_POLICY).trials_needed,
        results=results_folder(ctx),
        experimental=experimental,
        seed=seed,
        image=_image(catalog, row, image),
    )
    with Display(quiet=as_json) as display:
        result = _execute(catalog, request, display, offline, approve_licence)
    return _conclude(catalog, request, result, as_json)


def _image(catalog: Catalog, row: str, given: Path | None) -> Path | None:
    """The image: as given, else from the environment for a row that runs in one."""
    import os

    from qualify.runner.image_place import VARIABLE

    named = os.environ.get(VARIABLE, "")
    if given is None and named and catalog.row(row).placement == "image":
        return Path(named)
    return given


def _suite(catalog: Catalog, row: str, suite: str | None) -> str:
    from qualify.core.errors import UsageError

    listed = catalog.row(row).suites
    if not listed:
        raise UsageError(f"row {row} lists no suite", fix="list one in the row's manifest")
    if suite is None:
        return listed[0]
    if catalog.suite(suite).id not in listed:
        raise UsageError(
            f"row {row} does not list suite {suite}",
            fix=f"list it in the row's manifest, or use one of {', '.join(listed)}",
        )
    return suite


def _execute(
    catalog: Catalog,
    request: Request,
    display: Display,
    offline: bool,
    approve_licence: str | None,
) -> Result:
    from qualify.runner.run import execute

    def acquire(configuration: Configuration, reporter: Reporter) -> Path | None:
        return model_file(configuration, display, offline, approve_licence)

    return execute(catalog, request, display, acquire=acquire, verify=verified_files)


def model_file(
    configuration: Configuration, display: Display, offline: bool, approve_licence: str | None
) -> Path | None:
    """The model in the store, acquired when it is missing: its one file, or the folder of its
    snapshot. `None`: no model needed.
    """
    if not _needs_files(configuration):
        return None
    assert configuration.model is not None
    from qualify.models.store import acquire, locate

    snapshot = locate(configuration.model)
    if snapshot is None:
        display.phase(f"acquiring model {configuration.model.id}")
        with display.handed_over() as progress:
            snapshot = acquire(
                configuration.model,
                approve_licence=approve_licence,
                offline=offline,
                progress=progress,
            )
    if configuration.model.format == "safetensors":
        return snapshot.folder
    return next(iter(snapshot.path_of.values()))


def _needs_files(configuration: Configuration) -> bool:
    """Whether the engine loads the model's files here: somebody else's endpoint does not."""
    from qualify.core.status import EngineKind

    remote = configuration.runtime.engine is EngineKind.ENDPOINT
    return configuration.model is not None and bool(configuration.model.files) and not remote


def verified_files(
    configuration: Configuration, progress: Callable[[int], None] | None = None
) -> str | None:
    """Hash every file of the model; the digest of the list that was verified."""
    if not _needs_files(configuration):
        return None
    assert configuration.model is not None
    from qualify.models.store import verify

    return verify(configuration.model, progress)


def _conclude(catalog: Catalog, request: Request, result: Result, as_json: bool) -> int:
    from qualify.assessment.rules import DEFAULT_POLICY, assess
    from qualify.cli.run_output import print_summary, summary_json
    from qualify.core.clock import Clock
    from qualify.core.errors import ExitCode
    from qualify.core.status import RowStatus
    from qualify.evidence.ledger import open_ledger
    from qualify.runner.verdicts import evidence_for_verdicts, known_scenarios

    notes = [_project(catalog, request)]
    ledger = open_ledger(request.results)
    signed, failed = _signed(catalog, ledger)
    note = "; ".join(each for each in (*notes, failed) if each) or None
    policy = catalog.policy(DEFAULT_POLICY)
    with evidence_for_verdicts(request.results, ledger, known_scenarios(catalog)) as evidence:
        assessment = assess(
            request.row,
            result.configuration.digest,
            result.suite,
            evidence,
            policy,
            Clock().now(),
        )
    if as_json:
        click.echo(summary_json(result, assessment, note, signed))
        if note:
            click.echo(f"note: {note}", err=True)
    else:
        print_summary(result, assessment, request, policy, note, signed)
    counted = not request.experimental and request.seed is None
    good = counted and assessment.status is RowStatus.QUALIFIED
    return ExitCode.OK if good else ExitCode.NOT_A_PASS


def _project(catalog: Catalog, request: Request) -> str | None:
    """Let the results database follow; what keeps it from that costs no evidence."""
    from qualify.core.errors import QualifyError
    from qualify.evidence.ledger import open_ledger
    from qualify.manifests.configuration import resolve
    from qualify.results.projection import declared
    from qualify.runner.verdicts import follow_for_verdicts

    try:
        configurations = [resolve(catalog, row) for row in catalog.rows]
        follow_for_verdicts(
            request.results, open_ledger(request.results), declared(configurations), catalog
        )
    except QualifyError as error:
        return f"the results database was not updated, the evidence is safe: {error}"
    return None


def _signed(catalog: Catalog, ledger: Ledger) -> tuple[str | None, str | None]:
    """Sign the ledger when the user has a key: (`COUNT:DIGEST` to remember, what went wrong)."""
    from qualify.core.errors import QualifyError
    from qualify.evidence.signing.keys import signing_key_path

    path = signing_key_path(None)
    if path is None or not ledger.path.exists():
        return None, None
    from qualify.evidence.checkpoints import sign_checkpoint
    from qualify.evidence.signing.agent import load_signing_key

    try:
        key = load_signing_key(path, (catalog.project, ledger.folder.parent))
        said = sign_checkpoint(ledger, key, whole=False).checkpoint
    except QualifyError as error:
        return None, f"no checkpoint was signed, the evidence is safe: {error}"
    return f"{said.count}:{said.head}", None
