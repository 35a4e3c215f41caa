"""Why vLLM did not start, told from real logs: provoked ones, and lines of public issues."""

import json
from pathlib import Path

import pytest

from qualify.assessment.reasons import START_FAULTS
from qualify.runtimes.vllm_faults import HANGS, PATTERNS, classify, hanging

LOGS = Path(__file__).parents[2] / "assets/vllm-logs"
PROVOKED = sorted(LOGS.glob("*.log"))
PUBLIC = json.loads((LOGS / "public.json").read_text())


@pytest.mark.parametrize("log", PROVOKED, ids=lambda path: path.stem)
def test_a_provoked_fault_is_told_from_its_log(log):
    expected = log.name.split(".")[0]
    found = classify(log.read_text())
    assert (found.code if found else "unknown") == expected


@pytest.mark.parametrize("case", PUBLIC, ids=lambda case: case["issue"])
def test_a_fault_that_others_saw_is_told_from_their_line(case):
    found = classify(f"INFO starting\n{case['line']}\nProcess ended.\n")
    assert found.code == case["code"]
    assert found.seen == case["issue"]


def test_every_pattern_has_a_log_or_an_issue_that_shows_it():
    shown = {case["issue"] for case in PUBLIC}
    texts = [log.read_text() for log in PROVOKED]
    for pattern in PATTERNS:
        if "#" in pattern.seen:
            assert pattern.seen in shown, pattern
        else:
            assert [t for t in texts if (found := classify(t)) and found.code == pattern.code]


def test_every_code_says_what_to_do():
    codes = {pattern.code for pattern in (*PATTERNS, *HANGS)}
    assert codes == set(START_FAULTS)
    for fault in START_FAULTS.values():
        assert fault.meaning
        assert fault.next_step


def test_a_log_of_a_good_start_tells_no_fault():
    # Warnings of a server that became ready, as 0.32.0 writes them.
    good = (
        "WARNING [system_utils.py:255] This can cause fd limit errors like `OSError: [Errno 24]`\n"
        "INFO [kv_cache_utils.py:2327] CPU KV cache size: 4,194,304 tokens, Maximum concurrency\n"
        'INFO [parser_manager.py:38] "auto" tool choice has been enabled.\n'
    )
    assert classify(good) is None


def test_only_the_last_line_shows_a_hang():
    line = "(Worker_TP0 pid=9) INFO [pynccl.py:63] vLLM is using nccl==2.27.5"
    assert hanging(f"INFO before\n{line}\n").code == "collective-failed"
    assert hanging(f"{line}\nINFO Loading weights took 3 seconds\n") is None
    assert hanging("") is None


def test_the_logs_hold_no_path_of_a_machine():
    for log in PROVOKED:
        text = log.read_text()
        assert not [
            part for part in ("/root", "/home/", "/var/tmp", "site-packages") if part in text
        ]
