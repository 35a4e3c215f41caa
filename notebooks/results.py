"""Evidence at a glance, for analysts: `marimo edit notebooks/results.py -- --results FOLDER`.

Reads what `qualify query` reads, on a copy in memory: it changes nothing, and another program may
have the database open. As a script (`python notebooks/results.py --results FOLDER`) it prints the
same tables. Without `--results`, the folder is `$QUALIFY_RESULTS` or `results/` here.
"""
# ruff: noqa: ANN001, ANN003, ANN202, B018, N803, T201

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Results of Qualify")


@app.cell
def _():
    from pathlib import Path

    import marimo as mo

    from qualify.core.clock import Clock
    from qualify.core.errors import QualifyError
    from qualify.evidence.ledger import open_ledger
    from qualify.evidence.places import results_folder
    from qualify.manifests.catalog import find_project
    from qualify.results.database import snapshot
    from qualify.results.queries import Question, answer, named_queries, named_question

    return (
        Clock, Path, QualifyError, Question, answer, find_project, mo, named_queries,
        named_question, open_ledger, results_folder, snapshot,
    )  # fmt: skip


@app.cell
def _(Path, find_project, mo, results_folder):
    given = mo.cli_args().get("results")
    folder = results_folder(None if given else find_project(Path(__file__).parent), given)
    mo.md(f"# Results\n\nfrom `{folder}`")
    return (folder,)


@app.cell
def _(Clock, QualifyError, Question, answer, folder, mo, named_question, open_ledger, snapshot):
    def asked(question):
        """The lines of an answer as objects."""
        with snapshot(folder, open_ledger(folder), None) as (connection, _):
            return answer(connection, question).as_json()["rows"]

    def shown(title, question):
        """A table of an answer; printed where there is nobody to look at it."""
        try:
            rows = asked(question)
        except QualifyError as error:
            return mo.callout(mo.md(f"{error}"), kind="warn")
        if mo.app_meta().mode == "script":
            print(f"\n{title}: {len(rows)} lines")
            for row in rows:
                print("  " + ", ".join(f"{name}={value}" for name, value in row.items()))
        table = mo.ui.table(rows, selection=None) if rows else mo.md("nothing")
        return mo.vstack([mo.md(f"## {title}"), table])

    def named(title, name, **parameters):
        """A table of a named question."""
        words = {key: str(value) for key, value in parameters.items()}
        return shown(title, named_question(name, words, Clock().now()))

    def own(sql):
        """A table of an analyst's own question."""
        return shown("Your question", Question(sql))

    return named, own


@app.cell
def _(mo):
    mo.md("""
    Every trial that was reserved is in a denominator: what failed, what could not be told, and
    what never ended. Evidence of other sites has a number from 1 on and counts for no verdict here.
    """)


@app.cell
def _(named):
    named("Ledgers", "sites")


@app.cell
def _(named):
    named("Pass rates", "pass-rates")


@app.cell
def _(named):
    named("What each rate is divided by", "denominators")


@app.cell
def _(mo):
    newest = mo.ui.slider(2, 100, value=20, label="newest trials of each case", show_value=True)
    newest
    return (newest,)


@app.cell
def _(named, newest):
    named("Flaky cases", "flaky", trials=newest.value)


@app.cell
def _(mo):
    days = mo.ui.slider(1, 60, value=14, label="days to look ahead", show_value=True)
    days
    return (days,)


@app.cell
def _(days, named):
    named("Evidence that becomes too old", "expiring", days=days.value)


@app.cell
def _(named):
    named("Time to first token", "time-to-first-token")


@app.cell
def _(named):
    named("Budgets that were exceeded", "budget-overruns")


@app.cell
def _(mo, named_queries):
    known = {
        name: query
        for name, query in named_queries().items()
        if all(parameter.default is not None for parameter in query.parameters)
    }
    choice = mo.ui.dropdown(list(known), value="failed-checks", label="another question")
    choice
    return choice, known


@app.cell
def _(choice, known, named):
    named(known[choice.value].description, choice.value)


@app.cell
def _(mo):
    sql = mo.ui.text_area(
        "SELECT row, state, count(*) AS trials FROM trials GROUP BY ALL ORDER BY ALL",
        label="SQL of your own (one reading statement)",
        full_width=True,
    )
    sql
    return (sql,)


@app.cell
def _(own, sql):
    own(sql.value)


if __name__ == "__main__":
    app.run()
