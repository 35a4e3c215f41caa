"""`qualify evidence`: sign, verify, export and publish what the ledger holds; keys and signers."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qualify.evidence.checkpoints import StoredCheckpoint
    from qualify.evidence.findings import Reference, Verification
    from qualify.evidence.ledger import Ledger
    from qualify.evidence.signing.keys import SigningKey
    from qualify.evidence.signing.registry import Registry

as_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
key_option = click.option(
    "--key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Ed25519 key, PEM or OpenSSH; a .pub: by the SSH agent (default: $QUALIFY_SIGNING_KEY).",
)
_signers = (
    click.option(
        "--signer",
        "keys",
        multiple=True,
        metavar="KEY",
        type=click.Path(path_type=Path),
        help="Public key that counts (PEM or ssh-ed25519). With it no registry is looked at.",
    ),
    click.option(
        "--signers",
        "registries",
        multiple=True,
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Registry of signers that count. With it no other one is looked at.",
    ),
)


ELSEWHERE = ("export", "publish", "claim", "schema")
"""Commands of the group that stand in `evidence_export` and are imported when they are used."""


class _Group(click.Group):
    """A group some of whose commands are imported only when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        from qualify.cli import evidence_export

        command: click.Command = getattr(evidence_export, cmd_name)
        return command


@click.group(cls=_Group)
def evidence() -> None:
    """Signatures over the ledger, and everything that lets outsiders check it."""


@evidence.command()
@key_option
@click.option("--sigstore", is_flag=True, help="Sign keyless with the identity of this CI job.")
@as_json_option
@click.pass_context
def sign(ctx: click.Context, key: Path | None, sigstore: bool, as_json: bool) -> None:
    """Sign a checkpoint: how long the ledger is and where it ends.

    Verifies the whole chain first. Writes to ledger/checkpoints/ a DSSE envelope and an SSH
    signature of one statement. Signing again what is signed changes nothing.
    """
    from qualify.cli.context import ledger as open_
    from qualify.cli.tables import print_json
    from qualify.core.errors import UsageError
    from qualify.evidence.checkpoints import sign_checkpoint, sign_checkpoint_keyless

    if sigstore and key is not None:
        raise UsageError("both --key and --sigstore", fix="give one of them")
    ledger = open_(ctx)
    if sigstore:
        made, name = sign_checkpoint_keyless(ledger), "sigstore"
    else:
        found = signing_key(ctx, key)
        made, name = sign_checkpoint(ledger, found), found.public.id
    if as_json:
        print_json({"schema": "qualify-evidence-sign/1", **_checkpoint(made), "key": name})
        return
    said = made.checkpoint
    click.echo(f"signed {said.count} entries of site {said.site[:12]} at {said.time}")
    click.echo(f"  key        {name}")
    click.echo(f"  statement  {made.path}")
    click.echo(f"  remember   {said.count}:{said.head}")


def signing_key(ctx: click.Context, option: Path | None) -> SigningKey:
    """The key to sign with. Raises `UsageError` when there is none or it must not be used."""
    from qualify.core.errors import UsageError
    from qualify.evidence.signing.agent import load_signing_key
    from qualify.evidence.signing.keys import signing_key_path

    path = signing_key_path(option)
    if path is None:
        raise UsageError(
            "there is no key to sign with",
            fix="give --key FILE, or make one with `qualify evidence keys new`",
        )
    return load_signing_key(path, _never_below(ctx))


def _never_below(ctx: click.Context) -> list[Path]:
    """Where no private key may lie."""
    from qualify.cli.context import project_folder, results_folder

    project = project_folder(ctx, required=False)
    return [results_folder(ctx), *([project] if project else [])]


def _checkpoint(made: StoredCheckpoint) -> dict[str, Any]:
    said = made.checkpoint
    return {
        "site": said.site,
        "entries": said.count,
        "head": said.head,
        "time": said.time,
        "statement": str(made.path),
        "statement_digest": made.digest,
    }


@evidence.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@_signers[0]
@_signers[1]
@click.option(
    "--at-least",
    metavar="CHECKPOINT",
    help="File of a checkpoint that you kept, or COUNT:sha256:…; the ledger must continue it.",
)
@click.option("--covered", is_flag=True, help="Accept entries after the newest checkpoint.")
@as_json_option
@click.pass_context
def verify(
    ctx: click.Context,
    folder: Path | None,
    keys: tuple[Path, ...],
    registries: tuple[Path, ...],
    at_least: str | None,
    covered: bool,
    as_json: bool,
) -> int:
    """Verify evidence against the signers that count.

    FOLDER is a results folder, a ledger or an export; no project is needed. Exit 10 when something
    is wrong, or when not every entry is signed by a signer that counts; what is wrong is listed and
    nothing is repaired.
    """
    from qualify.cli.context import project_folder, results_folder
    from qualify.cli.tables import print_json
    from qualify.core.clock import Clock
    from qualify.core.errors import ExitCode
    from qualify.evidence.exports import check_export, is_export
    from qualify.evidence.signing.registry import signers_in_force
    from qualify.evidence.verification import ledgers_below, parse_reference, verify_ledger

    place = folder if folder is not None else results_folder(ctx)
    # What lies in a folder from elsewhere must not say who is to be believed about it.
    project = project_folder(ctx, required=False) if folder is None else None
    registry = signers_in_force(project, keys, registries)
    reference = parse_reference(at_least) if at_least else None
    now = Clock().now()
    ledgers = ledgers_below(place)
    about = _remembered(ledgers, reference)
    found = [
        verify_ledger(
            ledger,
            registry,
            now,
            at_least=reference if number == about else None,
            allow_uncovered=covered,
        )
        for number, ledger in enumerate(ledgers)
    ]
    if is_export(place):
        check_export(place, found[0], registry)
    accepted = all(each.accepted for each in found)
    if as_json:
        print_json(
            {
                "schema": "qualify-evidence-verify/1",
                "folder": str(place),
                "accepted": accepted,
                "signers_from": registry.origin if registry else None,
                "signers_file": registry.where if registry else None,
                "ledgers": [_verification(each) for each in found],
            }
        )
    else:
        for each in found:
            _print_verification(each)
        _print_conclusion(found, registry)
    return ExitCode.OK if accepted else ExitCode.NOT_A_PASS


def _remembered(ledgers: list[Ledger], reference: Reference | None) -> int:
    """Which ledger a remembered checkpoint is about: the one of its site, else the first one."""
    if reference is None or reference.site is None or len(ledgers) == 1:
        return 0
    from qualify.core.errors import QualifyError

    for number, ledger in enumerate(ledgers):
        with contextlib.suppress(QualifyError):
            if ledger.site() == reference.site:
                return number
    return 0


def _verification(found: Verification) -> dict[str, Any]:
    return {
        "ledger": str(found.folder),
        "site": found.site,
        "entries": found.count,
        "head": found.head,
        "covered": found.covered,
        "signers": found.signers,
        "signed_at": found.signed_at,
        "checkpoints": found.checkpoints,
        "at_least": found.at_least,
        "freshness": "at-least" if found.at_least is not None else "unknown",
        "accepted": found.accepted,
        "findings": [
            {"fault": each.fault.value, "where": each.where, "detail": each.detail}
            for each in found.findings
        ],
    }


def _print_verification(found: Verification) -> None:
    from qualify.cli.tables import printable, short

    for each in found.findings:
        place = Path(each.where).name if each.where.startswith(str(found.folder)) else each.where
        click.echo(f"✗ {each.fault.value}: {printable(place)}: {printable(each.detail)}")
    click.echo(f"ledger     {printable(str(found.folder))}")
    if found.head is not None:
        site = found.site[:12] if found.site else "-"
        click.echo(f"entries    {found.count}, head {short(found.head)}, site {site}")
    who = f" by {', '.join(found.signers)} at {found.signed_at}" if found.signers else ""
    click.echo(f"signed     the first {found.covered}{who}; {found.checkpoints} checkpoints count")
    click.echo(f"freshness  {found.freshness}")


def _print_conclusion(found: list[Verification], registry: Registry | None) -> None:
    if registry is None:
        click.echo("signers    none known: give --signer KEY or --signers FILE")
    elif registry.origin == "project":
        click.echo(f"signers    {registry.where}: whoever can change the project chose them")
    else:
        click.echo(f"signers    {registry.where}")
    wrong = sum(len(each.findings) for each in found)
    if wrong:
        click.echo(f"NOT ACCEPTED: {wrong} thing{'s' if wrong > 1 else ''} wrong")
    else:
        click.echo("accepted: these are the entries that the signers signed")


@evidence.group()
def keys() -> None:
    """Keys to sign with, and the registry of those that count."""


@keys.command("new")
@click.option(
    "--to",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="New file (default: signing-key in the user's configuration).",
)
@as_json_option
@click.pass_context
def new(ctx: click.Context, to: Path | None, as_json: bool) -> None:
    """Make an Ed25519 key, and show its public half. Never inside a project or evidence."""
    from qualify.evidence.signing.keys import FILE, write_new_key
    from qualify.storage.folders import private_folder, xdg_config_home

    path = to if to is not None else private_folder(xdg_config_home()) / FILE
    made = write_new_key(path, _never_below(ctx))
    _print_key(made.public, path, as_json)


@keys.command("show")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@as_json_option
@click.pass_context
def show(ctx: click.Context, file: Path, as_json: bool) -> None:
    """Show the public half of a key file, private or public, in every form that others want."""
    from qualify.core.errors import UsageError
    from qualify.evidence.signing.keys import read_public_key, read_signing_key

    try:
        public = read_public_key(file)
    except UsageError as error:
        if error.what != "is a private key":
            raise
        public = read_signing_key(file).public
    _print_key(public, file, as_json)


def _print_key(public: Any, path: Path, as_json: bool) -> None:
    from qualify.cli.tables import print_json
    from qualify.evidence.signing.sshsig import allowed_signers

    if as_json:
        print_json(
            {
                "schema": "qualify-evidence-key/1",
                "file": str(path),
                "id": public.id,
                "pem": public.pem,
                "ssh": public.ssh,
            }
        )
        return
    click.echo(f"key        {public.id}")
    click.echo(f"file       {path}")
    click.echo(f"ssh        {public.ssh}")
    click.echo(f"ssh-keygen {allowed_signers([('NAME', public)]).strip()}")
    click.echo(public.pem.strip())


@keys.command("list")
@_signers[0]
@_signers[1]
@as_json_option
@click.pass_context
def list_(
    ctx: click.Context, keys: tuple[Path, ...], registries: tuple[Path, ...], as_json: bool
) -> None:
    """List the signers in force, and which registry they are from."""
    from qualify.cli.context import project_folder
    from qualify.cli.tables import print_json, print_table
    from qualify.core.clock import format_time
    from qualify.evidence.signing.registry import signers_in_force

    registry = signers_in_force(project_folder(ctx, required=False), keys, registries)
    signers = registry.signers if registry else ()
    lines = [
        {
            "name": each.name,
            "key": each.key.id if each.key else None,
            "identity": each.identity.identity if each.identity else None,
            "issuer": each.identity.issuer if each.identity else None,
            "purposes": list(each.purposes),
            "sites": list(each.sites) if each.sites is not None else None,
            "valid_from": format_time(each.valid_from) if each.valid_from else None,
            "valid_until": format_time(each.valid_until) if each.valid_until else None,
        }
        for each in signers
    ]
    if as_json:
        print_json(
            {
                "schema": "qualify-evidence-signers/1",
                "from": registry.origin if registry else None,
                "file": registry.where if registry else None,
                "signers": lines,
            }
        )
        return
    if registry is None:
        click.echo("no registry of signers: nothing that is signed counts (give --signers FILE)")
        return
    click.echo(f"{registry.origin}: {registry.where}")
    columns = ("name", "key or identity", "purposes", "sites", "valid until")
    print_table(
        columns,
        [
            [
                each.name,
                each.key.id if each.key else each.identity.identity if each.identity else None,
                " ".join(each.purposes),
                "all" if each.sites is None else " ".join(site[:12] for site in each.sites),
                format_time(each.valid_until) if each.valid_until else None,
            ]
            for each in signers
        ],
    )


@keys.command("hand-over")
@click.option("--from", "old", required=True, metavar="FILE", type=click.Path(path_type=Path))
@click.option("--to", "new", required=True, metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--reason",
    type=click.Choice(("rotation", "retirement", "compromise")),
    default="rotation",
    show_default=True,
)
@click.pass_context
def hand_over(ctx: click.Context, old: Path, new: Path, reason: Any) -> None:
    """Pass on the right to sign this ledger. Both keys sign; the old one may sign no more after it.

    The new key vouches for everything that the old one signed until now.
    """
    from qualify.cli.context import ledger as open_
    from qualify.evidence.checkpoints import sign_checkpoint, sign_handover
    from qualify.evidence.signing.agent import load_signing_key

    below = _never_below(ctx)
    before, after = load_signing_key(old, below), load_signing_key(new, below)
    ledger = open_(ctx)
    path = sign_handover(ledger, before, after, reason)
    made = sign_checkpoint(ledger, after)
    click.echo(f"handed over at {made.checkpoint.count} entries")
    click.echo(f"  from       {before.public.id}")
    click.echo(f"  to         {after.public.id}")
    click.echo(f"  statement  {path}")
