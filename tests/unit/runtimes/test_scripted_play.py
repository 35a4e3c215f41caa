"""Scripts: which reply a request gets, in which form."""

import json

import pytest

from qualify.runtimes.scripted_play import RESULT_PREFIX, play

TOOLS = [{"type": "function", "function": {"name": "terminal"}}]
ECHO = {"tool": "terminal", "arguments": {"command": 'echo "{line}" >> {file}'}}
CAPTURES = {"file": r"([a-z]+\.txt)", "line": '"([^"]+)"'}


def user(text):
    return {"role": "user", "content": text}


def assistant(text="working"):
    return {"role": "assistant", "content": text}


def tool(text):
    return {"role": "tool", "content": text}


def script(*replies, **captures):
    return {"replies": list(replies), "captures": captures}


def ask(played, *messages, tools=True):
    return play(played, {"messages": list(messages), "tools": TOOLS if tools else []})


def test_the_first_reply_whose_conditions_hold_is_played():
    played = script({"when_message": "no", "text": "a"}, {"text": "b"}, {"text": "c"})
    assert ask(played, user("yes")).message["content"] == "b"
    assert ask(played, user("no")).message["content"] == "a"


def test_both_conditions_must_hold():
    played = script({"when_message": "go", "when_turn": 1, "text": "a"}, {"text": "b"})
    assert ask(played, user("go")).message["content"] == "b"
    assert ask(played, user("x"), assistant(), tool("go on")).message["content"] == "a"


def test_a_script_without_a_fitting_reply_is_an_error_not_an_answer():
    answer = ask(script({"when_message": "never", "text": "a"}), user("hello"))
    assert answer.status == 500


@pytest.mark.parametrize("result", [tool("done"), user(f"{RESULT_PREFIX}terminal]:\ndone")])
def test_turns_are_counted_alike_in_both_tool_modes(result):
    played = script(*({"when_turn": turn, "text": str(turn)} for turn in range(3)))
    history = [user("do it"), assistant(), result, assistant(), result]
    assert ask(played, *history).message["content"] == "2"
    assert ask(played, *history, user("again")).message["content"] == "0"


def test_with_tools_calls_are_structured_and_may_be_several():
    answer = ask(script({"calls": [ECHO, ECHO]}, **CAPTURES), user('put "x y" into notes.txt'))
    calls = answer.message["tool_calls"]
    assert [json.loads(c["function"]["arguments"])["command"] for c in calls] == [
        'echo "x y" >> notes.txt'
    ] * 2
    assert len({call["id"] for call in calls}) == 2
    assert answer.finish_reason == "tool_calls"
    assert answer.message["content"] is None


def test_ids_of_calls_differ_between_turns():
    played = script({"calls": [ECHO]})
    first = ask(played, user("a")).message["tool_calls"][0]["id"]
    second = ask(played, user("a"), assistant(), tool("r")).message["tool_calls"][0]["id"]
    assert first != second


def test_without_tools_the_first_call_is_written_in_the_sdks_format():
    answer = ask(
        script({"text": "Well:", "calls": [ECHO, ECHO]}, **CAPTURES),
        user('put "x" into notes.txt'),
        tools=False,
    )
    assert answer.message["content"] == (
        "Well:\n<function=terminal>\n"
        '<parameter=command>echo "x" >> notes.txt</parameter>\n</function>'
    )
    assert answer.finish_reason == "stop"


def test_a_value_of_several_lines_stands_apart_as_the_sdk_writes_it():
    call = {"tool": "file_editor", "arguments": {"file_text": "a\nb"}}
    content = ask(script({"calls": [call]}), user("x"), tools=False).message["content"]
    assert "<parameter=file_text>\na\nb\n</parameter>" in content


def test_captures_come_from_the_newest_user_message_that_has_them():
    played = script({"text": "{file} {line}"}, **CAPTURES)
    answer = ask(played, user('write "one" to a.txt'), assistant('"no" z.txt'), user("to b.txt"))
    assert answer.message["content"] == "b.txt one"


def test_results_are_looked_at_only_when_no_user_message_has_the_capture():
    played = script({"text": "{line} {secret}"}, line='"([^"]+)"', secret="(s-[0-9]+)")
    answer = ask(played, user('write "one"'), assistant(), tool('"two" s-12'))
    assert answer.message["content"] == "one s-12"


def test_braces_that_name_no_capture_stay():
    assert ask(script({"text": "${HOME} {x}"}), user("a")).message["content"] == "${HOME} {x}"


def test_text_may_come_in_parts():
    played = script({"when_message": "b", "text": "found"})
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert ask(played, parts).message["content"] == "found"


def test_tokens_are_four_characters_rounded_up():
    answer = ask(script({"text": "12345"}), user("123456789"))
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 2)


def test_faults_delays_and_statuses_are_passed_on():
    answer = ask(script({"fault": "hang", "delay_ms": 7, "status": 503}), user("a"))
    assert (answer.fault, answer.delay_ms, answer.status) == ("hang", 7, 503)
