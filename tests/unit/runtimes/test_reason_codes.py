"""Every reason code that the sources raise stands in the reference, and the other way round."""

import re
from pathlib import Path

from qualify.assessment.reasons import START_FAULTS
from qualify.evidence.records import StartFailure
from qualify.runtimes.admission_reasons import CODES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/engines.md").read_text()
SOURCES = ROOT / "src/qualify/runtimes"


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def raised(names, pattern):
    return {code for name in names for code in re.findall(pattern, (SOURCES / name).read_text())}


def test_the_reference_lists_the_reasons_of_engines():
    listed = set(
        re.findall(
            r"^\| `([a-z-]+)` \|", section("Reason codes of an engine that does not start"), re.M
        )
    )
    engines = ["local.py", "llama_cpp.py", "vllm.py", "endpoint.py"]
    found = raised(engines, r'(?:EngineFault|_fault)\(\s*"([a-z-]+)"')
    found |= raised(["local.py"], r'^ +"(server-missing|load-failed|port-taken)": \(')
    found |= raised(["endpoint.py"], r'code = "([a-z-]+)" if') | {"no-answer", "load-failed"}
    found |= {"port-taken", *START_FAULTS}
    assert listed == found


def test_admission_raises_only_the_codes_of_its_table_and_all_of_them():
    names = [path.name for path in SOURCES.glob("admission*.py")]
    assert len(names) >= 4
    found = raised(names, r'refusal\(\s*"([a-z-]+)"') | raised(
        ["admission_sharding.py"], r'yield \(?\s*"((?:tensor|quantization)-[a-z-]+)"'
    )
    assert found == set(CODES)


def test_the_reference_lists_the_reasons_of_the_relay():
    text = section("The relay").split("Reason codes of a failed call:")[1]
    listed = set(re.findall(r"`([a-z-]+)`", text))
    found = raised(["relaying.py"], r'Failed\(\s*"([a-z-]+)"')
    found |= raised(["relaying.py"], r'failure = \S+ "([a-z-]+)"') | {"client-gone", "relay-fault"}
    found |= raised(["calls.py"], r'found\.append\("([a-z-]+)"\)')
    assert listed == found


def test_every_code_fits_into_a_record():
    codes = re.findall(r"`([a-z]+(?:-[a-z]+)*)`", PAGE.split("## Reason codes of an engine")[1])
    codes += CODES
    assert len(codes) > 20
    for code in codes:
        StartFailure(
            time="2026-11-30T00:00:00Z",
            row="row",
            configuration="sha256:" + "0" * 64,
            reason=code,
            elapsed_ms=1,
        )
