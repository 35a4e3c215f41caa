"""Streams of chat completions: cut into events and put together again, byte for byte."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualify.runtimes.streams import Assembler, BrokenStream, EventReader, has_token, read_chunk

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
HEAD = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
words = st.text(min_size=1, max_size=8)


def chunk(delta, reason=None, **more):
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {**HEAD, "choices": [choice], **more}


def assembled(*chunks):
    assembler = Assembler()
    for item in chunks:
        assembler.add(item)
    return assembler


def pieces_of(text, at):
    cuts = sorted({0, len(text), *(cut % (len(text) + 1) for cut in at)})
    return [text[a:b] for a, b in itertools.pairwise(cuts)]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5),
    st.lists(st.integers(0, 999)),
)
def test_events_do_not_depend_on_how_the_bytes_arrive(texts, cuts):
    data = [json.dumps({"t": text}) for text in texts]
    raw = b": ping\n\n" + b"".join(b"data: " + d.encode() + b"\r\n\r\n" for d in data)
    reader = EventReader()
    assert [e for piece in pieces_of(raw, cuts) for e in reader.feed(piece)] == data


def test_an_event_of_several_lines_is_one_event():
    assert list(EventReader().feed(b"event: x\ndata: a\ndata:b\n\n")) == ["a\nb"]


def test_an_event_without_end_is_not_kept_for_ever():
    with pytest.raises(BrokenStream):
        list(EventReader().feed(b"data: " + b"x" * (5 << 20)))


@pytest.mark.parametrize("data", ["not json", "[1]", '"text"', '{"choices": 3}'])
def test_what_is_no_chunk_breaks_the_stream(data):
    with pytest.raises(BrokenStream):
        read_chunk(data)


def test_a_chunk_without_choices_is_a_chunk():
    assert read_chunk('{"choices": [], "usage": {}}') == {"choices": [], "usage": {}}


@given(st.lists(words, max_size=6), st.dictionaries(words, words, max_size=3), st.integers(0, 3))
def test_any_answer_survives_being_streamed(texts, arguments, calls):
    written = json.dumps(arguments)
    parts = [chunk({"role": "assistant", "content": None})]
    parts += [chunk({"content": text}) for text in texts]
    for index in range(calls):
        opening = {"index": index, "id": f"c{index}", "type": "function"}
        parts.append(
            chunk({"tool_calls": [{**opening, "function": {"name": "t", "arguments": ""}}]})
        )
        parts += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in pieces_of(written, [3, 7])
        ]
    parts += [chunk({}, "tool_calls" if calls else "stop"), {**HEAD, "choices": [], "usage": USAGE}]
    whole = assembled(*parts).whole()
    message = whole["choices"][0]["message"]
    assert message["content"] == ("".join(texts) or (None if calls else ""))
    assert [json.loads(c["function"]["arguments"]) for c in message.get("tool_calls", [])] == [
        arguments
    ] * calls
    assert whole["usage"] == USAGE
    assert whole["object"] == "chat.completion"


def test_reasoning_and_fields_besides_are_kept():
    whole = assembled(
        chunk({"reasoning_content": "let "}),
        chunk({"reasoning_content": "me"}, timings={"predicted_n": 1}),
        chunk({"content": "ok"}, "stop", system_fingerprint="b1"),
    ).whole()
    assert whole["choices"][0]["message"]["reasoning_content"] == "let me"
    assert whole["timings"] == {"predicted_n": 1}
    assert whole["system_fingerprint"] == "b1"


def test_log_probabilities_are_appended():
    first, second = chunk({"content": "a"}), chunk({"content": "b"}, "stop")
    first["choices"][0]["logprobs"] = {"content": [{"token": "a"}]}
    second["choices"][0]["logprobs"] = {"content": [{"token": "b"}]}
    whole = assembled(first, second).whole()
    assert whole["choices"][0]["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}]}


def test_a_name_that_is_said_in_every_piece_is_said_once():
    piece = {"index": 0, "function": {"name": "terminal", "arguments": "{"}}
    whole = assembled(chunk({"tool_calls": [piece]}), chunk({"tool_calls": [piece]})).whole()
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"] == {
        "name": "terminal",
        "arguments": "{{",
    }


def test_several_choices_are_kept_apart():
    def numbered(index, text):
        return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": "stop"}]}

    whole = assembled(numbered(1, "b"), numbered(0, "a")).whole()
    assert [c["message"]["content"] for c in whole["choices"]] == ["a", "b"]


@pytest.mark.parametrize(
    "delta",
    [
        "text",
        {"tool_calls": "x"},
        {"tool_calls": ["x"]},
        {"tool_calls": [{"index": 7, "function": {}}]},
        {"tool_calls": [{"index": -1}]},
    ],
)
def test_a_delta_that_is_not_understood_breaks_the_stream(delta):
    with pytest.raises(BrokenStream):
        assembled(chunk(delta))


def test_a_stream_is_complete_only_when_every_choice_has_ended():
    assert not assembled().complete
    assert not assembled(chunk({"content": "a"})).complete
    assert assembled(chunk({"content": "a"}), chunk({}, "stop")).complete


def test_only_chunks_with_something_written_count_as_tokens():
    assert has_token(chunk({"content": "a"}))
    assert has_token(chunk({"tool_calls": [{"index": 0}]}))
    assert not has_token(chunk({"role": "assistant", "content": None}))
    assert not has_token(chunk({"role": "assistant", "content": ""}))
    assert not has_token({"choices": [], "usage": USAGE})
