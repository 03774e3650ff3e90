"""Every row of a corpus is kept, refused or not taken, in an order and under names that anyone can work out."""

import hashlib
import json
import struct

import numpy as np
import pytest
from chat_rows import chat
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.errors import InputError
from routing.corpus.files import distinct_names
from routing.corpus.load import load_corpus, render_texts


def ids_row(*ids, **row):
    return {"input_ids": list(ids), **row}


def placed(corpus):
    return [(trajectory.source_file, trajectory.source_row) for trajectory in corpus.trajectories]


def refused(corpus):
    return [(refusal.source_file, refusal.source_row, refusal.reason) for refusal in corpus.refusals]


def test_a_trajectory_says_what_it_is_and_whence(words, write):
    corpus = load_corpus([write("a.jsonl", [ids_row(1, 258)])], tokenizer=words)
    trajectory = corpus.trajectories[0]
    assert trajectory.trajectory_hash == hashlib.sha256(struct.pack("<2i", 1, 258)).hexdigest()
    assert trajectory.token_ids.dtype == np.int32
    assert trajectory.token_ids.tolist() == [1, 258]
    assert (trajectory.stratum, trajectory.source_file, trajectory.source_row) == ("a.jsonl", "a.jsonl", 0)
    assert corpus.num_tokens == 2


def test_a_file_is_hashed_and_counted(words, write):
    path = write("a.jsonl", [ids_row(1), ids_row(), ids_row(1)])
    account = load_corpus([path], tokenizer=words).files[0]
    raw = path.read_bytes()
    assert (account.sha256, account.num_bytes) == (hashlib.sha256(raw).hexdigest(), len(raw))
    assert (account.rows, account.kept, account.refused, account.not_taken, account.bad_lines) == (3, 1, 2, 0, 0)
    assert (account.name, account.path, account.format) == ("a.jsonl", str(path), "token-ids")


def test_corpus_order_is_files_as_given_and_rows_as_in_the_file(words, write):
    a, b = write("a.jsonl", [ids_row(1), ids_row(2)]), write("b.jsonl", [ids_row(3)])
    assert placed(load_corpus([b, a], tokenizer=words)) == [("b.jsonl", 0), ("a.jsonl", 0), ("a.jsonl", 1)]


@pytest.mark.fault(
    "the same trajectory twice, in one file and in two",
    how="repeats of token ids",
    tries=2,
    outcome="the first is kept, the others counted as exact_repeat",
)
def test_an_exact_repeat_is_dropped_and_the_first_in_corpus_order_kept(words, write):
    a, b = write("a.jsonl", [ids_row(1), ids_row(2), ids_row(1)]), write("b.jsonl", [ids_row(2)])
    corpus = load_corpus([a, b], tokenizer=words)
    assert placed(corpus) == [("a.jsonl", 0), ("a.jsonl", 1)]
    assert refused(corpus) == [("a.jsonl", 2, "exact_repeat"), ("b.jsonl", 0, "exact_repeat")]
    assert corpus.refusals[1].detail == "the same tokens as row 1 of a.jsonl"
    # dealt in turn, row 0 of b comes before row 1 of a; which of them is kept does not change
    assert placed(load_corpus([a, b], tokenizer=words, max_tokens=9)) == placed(corpus)


def test_whole_trajectories_are_dealt_in_turn_until_one_would_exceed_the_budget(words, write):
    a = write("a.jsonl", [ids_row(1, 1), ids_row(2, 2), ids_row(3, 3)])
    b = write("b.jsonl", [ids_row(4, 4, 4)])
    # dealt: a0 (2), b0 (5), a1 (7), a2 would make 9
    corpus = load_corpus([a, b], tokenizer=words, max_tokens=8)
    assert placed(corpus) == [("a.jsonl", 0), ("a.jsonl", 1), ("b.jsonl", 0)]
    assert [(file.rows, file.kept, file.not_taken) for file in corpus.files] == [(3, 2, 1), (1, 1, 0)]
    assert len(load_corpus([a, b], tokenizer=words, max_tokens=9).trajectories) == 4
    # a later trajectory that would still fit is not taken: b0 exceeds 4, a1 would not
    assert placed(load_corpus([a, b], tokenizer=words, max_tokens=4)) == [("a.jsonl", 0)]


def test_refused_rows_and_repeats_take_nothing_from_the_budget(words, write):
    path = write("a.jsonl", [ids_row(1, 1), ids_row(), ids_row(1, 1), ids_row(2, 2), ids_row()])
    corpus = load_corpus([path], tokenizer=words, max_tokens=4)
    assert placed(corpus) == [("a.jsonl", 0), ("a.jsonl", 3)]
    assert [reason for *_, reason in refused(corpus)] == ["empty", "exact_repeat", "empty"]
    account = load_corpus([path], tokenizer=words, max_tokens=3).files[0]
    assert (account.rows, account.kept, account.refused, account.not_taken) == (5, 1, 2, 2)


def test_a_budget_below_the_first_trajectory_is_refused(words, write):
    path = write("a.jsonl", [ids_row(), ids_row(1, 2, 3)])
    with pytest.raises(InputError, match=r"--max-tokens: 2 is below the first trajectory, row 1 of a\.jsonl, which has 3 tokens"):
        load_corpus([path], tokenizer=words, max_tokens=2)


def test_little_is_tokenized_behind_the_budget(words, write):
    path = write("a.jsonl", [chat(f"w{row}") for row in range(500)])
    assert load_corpus([path], tokenizer=words, max_tokens=10).files[0].rows == 500
    assert words.num_encoded <= 32


def test_bad_lines_behind_the_budget_are_still_found(words, write):
    path = write("a.jsonl", json.dumps(ids_row(1)) + "\n" + json.dumps(ids_row(2)) + "\n{\n")
    with pytest.raises(InputError, match=r"a\.jsonl:3: "):
        load_corpus([path], tokenizer=words, max_tokens=1)


ROWS = st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1, max_size=5)


@settings(max_examples=60)
@given(contents=st.lists(ROWS, min_size=1, max_size=3), budget=st.none() | st.integers(3, 12))
def test_loading_is_what_a_naive_dealer_would_do(words, write, contents, budget):
    paths = [write(f"{index}.jsonl", [ids_row(*row) for row in rows]) for index, rows in enumerate(contents)]
    order = [(file, row) for file, rows in enumerate(contents) for row in range(len(rows))]
    if budget is not None:
        order.sort(key=lambda place: (place[1], place[0]))
    dealt, seen = [], []
    for file, row in order:
        ids = contents[file][row]
        if ids and ids not in seen:
            if budget is not None and sum(map(len, seen)) + len(ids) > budget:
                break
            seen.append(ids)
        dealt.append((file, row))
    expected = []
    for file, row in sorted(dealt):
        if (ids := contents[file][row]) and ids not in [kept for _, _, kept in expected]:
            expected.append((f"{file}.jsonl", row, ids))
    if not expected:
        with pytest.raises(InputError, match="nothing is kept"):
            load_corpus(paths, tokenizer=words, max_tokens=budget)
        return
    corpus = load_corpus(paths, tokenizer=words, max_tokens=budget)
    assert [(t.source_file, t.source_row, t.token_ids.tolist()) for t in corpus.trajectories] == expected
    for file, rows in zip(corpus.files, contents, strict=True):
        assert file.rows == file.kept + file.refused + file.not_taken == len(rows)
    assert sum(file.refused for file in corpus.files) == len(corpus.refusals) == len(dealt) - len(expected)


def test_a_task_is_a_unit_across_files_and_a_row_without_one_is_its_own(words, write):
    policy = {"role": "system", "content": "# Airline Agent Policy\n"}
    tau = write("tau.json", [{"task_id": 7, "traj": [policy, {"role": "user", "content": "x"}]}])
    tau2 = write(
        "tau2.json",
        {
            "info": {"environment_info": {"domain_name": "airline", "policy": "p"}},
            "simulations": [{"task_id": "7", "messages": [{"role": "user", "content": "x"}]}],
        },
    )
    rows = write(
        "rows.jsonl",
        [
            chat("a"),
            chat("b", task_id="t"),
            chat("c", task_id="t", domain="shop"),
            chat("d", task_id=3.0),
            chat("e", task_id=True),
        ],
    )
    corpus = load_corpus([tau, tau2, rows], tokenizer=words)
    units = [trajectory.unit for trajectory in corpus.trajectories]
    assert units == ["airline/7", "airline/7", "rows.jsonl#0", "rows.jsonl/t", "shop/t", "rows.jsonl/3", "rows.jsonl#4"]
    # --domain speaks where the file does not, before the reader's rule
    units = [trajectory.unit for trajectory in load_corpus([tau, tau2, rows], tokenizer=words, domain="d").trajectories]
    assert units == ["d/7", "airline/7", "rows.jsonl#0", "d/t", "shop/t", "d/3", "rows.jsonl#4"]
    with pytest.raises(InputError, match="--domain"):
        load_corpus([tau], tokenizer=words, domain=" ")


def test_a_task_id_that_is_no_short_name_is_hashed(words, write):
    corpus = load_corpus([write("a.jsonl", [chat("a", task_id="x" * 513), chat("b", task_id="line\nline")])], tokenizer=words)
    digest = hashlib.sha256(b"x" * 513).hexdigest()[:16]
    assert corpus.trajectories[0].unit == f"a.jsonl/sha256:{digest}"
    assert "\n" not in corpus.trajectories[1].unit


def test_prose_where_a_name_belongs_is_not_kept(words, write):
    prose = "please change the address of my order to the one that I gave you last week, it is urgent"
    rows = [chat("a", task_id=prose), chat("b", domain=prose), {"messages": [{"role": prose, "content": "x"}]}]
    corpus = load_corpus([write("a.jsonl", rows)], tokenizer=words)
    assert "address" not in repr((corpus.trajectories, corpus.refusals))
    assert corpus.refusals[0].detail == f"messages[0]: a role of {len(prose)} characters"


def test_files_of_one_name_are_told_apart_by_their_folders(words, write):
    assert distinct_names(["x/a.json", "b.json"]) == ("a.json", "b.json")
    assert distinct_names(["/r/x/a.json", "/r/y/a.json"]) == ("x/a.json", "y/a.json")
    assert distinct_names(["/r/1/x/a.json", "/r/2/x/a.json", "/r/2/y/a.json"]) == ("1/x/a.json", "2/x/a.json", "y/a.json")
    assert distinct_names(["/a.json", "/x/a.json"]) == ("a.json", "x/a.json")
    corpus = load_corpus([write("x/a.jsonl", [ids_row(1)]), write("y/a.jsonl", [ids_row(2)])], tokenizer=words)
    assert [trajectory.unit for trajectory in corpus.trajectories] == ["x/a.jsonl#0", "y/a.jsonl#0"]


@pytest.mark.fault(
    "a trajectory longer than the model takes",
    how="3 tokens, 2 positions",
    tries=1,
    outcome="refused as too_long with both numbers, never cut",
)
def test_a_trajectory_beyond_the_positions_of_the_model_is_refused_never_cut(words, write):
    corpus = load_corpus([write("a.jsonl", [ids_row(1, 2), ids_row(1, 2, 3)])], tokenizer=words, max_positions=2)
    assert placed(corpus) == [("a.jsonl", 0)]
    assert refused(corpus) == [("a.jsonl", 1, "too_long")]
    assert corpus.refusals[0].detail == "3 tokens, the model takes 2"


@pytest.mark.fault(
    "token ids that are none: negative, beyond the vocabulary, 10**30, no integers, masks of another length, only padding",
    how="one such row beside a sound one",
    tries=11,
    outcome="refused with the value, counted; the sound row is kept",
)
@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        (ids_row(-1), "token_ids", "id -1 is outside the vocabulary of 257"),
        (ids_row(257), "token_ids", "id 257 is outside the vocabulary of 257"),
        (ids_row(10**30), "token_ids", "is outside the vocabulary of 257"),
        (ids_row(1.0), "token_ids", "something other than integers"),
        (ids_row(True), "token_ids", "something other than integers"),
        (ids_row(None), "token_ids", "something other than integers"),
        (ids_row([1]), "token_ids", "something other than integers"),
        (ids_row(1, 2, attention_mask=[1]), "token_ids", "attention_mask is not 2 zeros and ones"),
        (ids_row(1, 2, attention_mask=[1, 2]), "token_ids", "attention_mask is not 2 zeros and ones"),
        (ids_row(1, 2, attention_mask=[0, 0]), "empty", "no tokens"),
        ({"input_ids": None}, "shape", "'input_ids' is absent or null, not a list"),
    ],
)
def test_ids_that_the_tokenizer_could_not_have_made_are_refused(byte_tokenizer, write, row, reason, detail):
    corpus = load_corpus([write("a.jsonl", [ids_row(0, 256), row])], tokenizer=byte_tokenizer)
    assert refused(corpus) == [("a.jsonl", 1, reason)]
    assert detail in corpus.refusals[0].detail


def test_padding_is_dropped_on_either_side(words, write):
    rows = [ids_row(9, 1, 2, attention_mask=[0, 1, 1]), ids_row(3, 9, attention_mask=[True, False])]
    trajectories = load_corpus([write("a.jsonl", rows)], tokenizer=words).trajectories
    assert [trajectory.token_ids.tolist() for trajectory in trajectories] == [[1, 2], [3]]


def test_what_the_template_does_not_take_is_refused_with_its_own_words(words, write):
    late = {"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "secret"}]}
    alone = {"messages": [{"role": "assistant", "content": "secret"}]}
    corpus = load_corpus([write("a.jsonl", [chat("x"), late, alone])], tokenizer=words)
    assert [(refusal.reason, refusal.detail) for refusal in corpus.refusals] == [
        ("template", "the chat template raised TemplateError: System message must be at the beginning."),
        ("template", "the chat template raised TemplateError: No user query found in messages."),
    ]


def test_a_template_that_quotes_the_conversation_is_not_repeated(words, write):
    words.chat_template = "{{ raise_exception('bad: ' + messages[0].content) if messages[0].content == 'secret' else 'fine' }}"
    corpus = load_corpus([write("a.jsonl", [chat("x"), chat("secret")])], tokenizer=words)
    assert corpus.refusals[0].detail == "the chat template raised TemplateError"


@pytest.mark.parametrize(("template", "what"), [(None, "has no chat template"), ("{% if %}", "does not compile: line 1")])
def test_a_tokenizer_without_a_sound_template_is_refused(words, write, template, what):
    words.chat_template = template
    with pytest.raises(InputError, match=what):
        load_corpus([write("a.jsonl", [chat("x")])], tokenizer=words)
    assert len(load_corpus([write("a.txt", "plain text")], tokenizer=words).trajectories) == 1


def test_a_tokenizer_that_fails_is_named_with_the_rows(words, write, monkeypatch):
    def fail(*_, **__):
        raise ValueError("no unknown token")

    monkeypatch.setattr(type(words), "__call__", fail)
    with pytest.raises(InputError, match=r"a\.txt: row 0 .*the tokenizer raised ValueError: no unknown token"):
        load_corpus([write("a.txt", "x")], tokenizer=words)


@pytest.mark.fault(
    "arguments nested 50 to 100,000 deep",
    how="one row a depth, rendered by a template",
    tries=6,
    outcome="a trajectory, a refusal as too_deep, or a bad line with its number",
)
@pytest.mark.parametrize("depth", [50, 300, 480, 700, 900, 100_000])
def test_deep_nesting_ends_in_a_trajectory_a_refusal_or_a_bad_line(byte_tokenizer, write, depth):
    call = {"function": {"name": "f", "arguments": {"a": "HERE"}}}
    deep = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]}
    line = json.dumps(deep).replace('"HERE"', "[" * depth + "]" * depth)
    path = write("a.jsonl", json.dumps(chat("x")) + "\n" + line)
    try:
        corpus = load_corpus([path], tokenizer=byte_tokenizer)
    except InputError as error:
        message = str(error)
        assert depth > 300
    else:
        message = "a.jsonl:2: nested too deeply"
        assert depth < 100_000
        assert [refusal.reason for refusal in corpus.refusals] == ["too_deep"] * (2 - len(corpus.trajectories))
    assert "a.jsonl:2: nested too deeply" in message


def test_a_template_that_recurses_without_end_is_refused(words, write):
    words.chat_template = (
        "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(1) if messages[0].content == 'deep' else 'fine' }}"
    )
    corpus = load_corpus([write("a.jsonl", [chat("x"), chat("deep")])], tokenizer=words)
    assert refused(corpus) == [("a.jsonl", 1, "too_deep")]


@pytest.mark.fault(
    "an empty trajectory; NUL in a text",
    how="texts that a template makes so",
    tries=2,
    outcome="refused as empty and content, counted",
)
def test_nul_and_empty_texts_are_refused(words, write):
    words.chat_template = "{{ messages[0].content }}"
    corpus = load_corpus([write("a.jsonl", [chat("x"), chat("")])], tokenizer=words)
    assert refused(corpus) == [("a.jsonl", 1, "empty")]
    words.chat_template = "{{ messages[0].content }}\0"
    with pytest.raises(InputError, match="nothing is kept; refused: content 1"):
        load_corpus([write("b.jsonl", [chat("x")])], tokenizer=words)


def test_a_corpus_of_which_nothing_is_kept_is_refused_with_the_reasons(words, write):
    path = write("a.jsonl", [chat(), chat(), {"messages": [{"role": "exit", "content": "x"}]}])
    with pytest.raises(InputError) as caught:
        load_corpus([path], tokenizer=words)
    told = "nothing is kept; refused: empty 2, unknown_role 1; the first, row 0 of a.jsonl: no messages"
    assert str(caught.value) == f"{path}: {told}"


def test_bad_lines_stop_or_are_skipped_and_counted(words, write):
    path = write("a.jsonl", json.dumps(ids_row(1)) + "\n{cut\n\n" + json.dumps(ids_row(2)) + "\n")
    with pytest.raises(InputError, match=r"a\.jsonl:2: "):
        load_corpus([path], tokenizer=words)
    corpus = load_corpus([path], tokenizer=words, on_bad_line="skip")
    account = corpus.files[0]
    assert (account.rows, account.kept, account.bad_lines) == (2, 2, 1)
    assert placed(corpus) == [("a.jsonl", 0), ("a.jsonl", 2)]
    with pytest.raises(InputError, match="'maybe' is not known; one of stop, skip"):
        load_corpus([path], tokenizer=words, on_bad_line="maybe")


def test_a_first_line_that_is_bad_does_not_hide_the_format(words, write):
    path = write("a.jsonl", '{"input_ids": [1\n' + json.dumps(ids_row(2)) + "\n")
    with pytest.raises(InputError, match=r"a\.jsonl:1: "):
        load_corpus([path], tokenizer=words)
    assert placed(load_corpus([path], tokenizer=words, on_bad_line="skip")) == [("a.jsonl", 1)]


def test_rules_are_counted_over_all_files(words, write):
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None}]}
    other = {"messages": [{"role": "user", "content": "y"}, {"role": "assistant", "content": None}]}
    corpus = load_corpus([write("a.jsonl", [row]), write("b.jsonl", [other])], tokenizer=words)
    assert corpus.normalised == {"content_null_to_empty": 2}


def test_progress_hears_the_tokens_of_each_new_trajectory(words, write):
    heard = []
    load_corpus([write("a.jsonl", [ids_row(1), ids_row(1), ids_row(2, 3)])], tokenizer=words, on_trajectory=heard.append)
    assert heard == [1, 2]


def test_rendered_texts_are_those_that_loading_encodes(byte_tokenizer, write):
    a, b = write("a.jsonl", [chat("x", task_id=1), chat(), chat("y")]), write("b.txt", "prose")
    rendered = list(render_texts([a, b], chat_template=byte_tokenizer.chat_template, domain="d"))
    assert [(text.unit, text.source_file, text.source_row, text.text) for text in rendered] == [
        ("d/1", "a.jsonl", 0, "<|user|>x"),
        ("a.jsonl#2", "a.jsonl", 2, "<|user|>y"),
        ("b.txt#0", "b.txt", 0, "prose"),
    ]
    corpus = load_corpus([a, b], tokenizer=byte_tokenizer)
    assert [byte_tokenizer.decode(trajectory.token_ids) for trajectory in corpus.trajectories] == [text.text for text in rendered]
    with pytest.raises(InputError, match="token ids have no text"):
        list(render_texts([write("c.jsonl", [ids_row(1)])], chat_template="x"))


def test_a_file_name_that_cannot_be_printed_is_escaped(words, write):
    corpus = load_corpus([write("a\nb.jsonl", [ids_row(1)])], tokenizer=words)
    assert corpus.trajectories[0].source_file == "a\\nb.jsonl"
    with pytest.raises(InputError) as caught:
        load_corpus([write("c\nd.jsonl", "")], tokenizer=words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", ["longer", "same size", "another file"])
def test_a_file_that_changes_while_it_is_read_is_refused(words, write, change):
    path = write("a.jsonl", [ids_row(1, 2), ids_row(3, 4)])

    def on_trajectory(_num_tokens):
        text = path.read_text()
        if change == "another file":
            path.unlink()
        path.write_text(text + text if change == "longer" else text.replace("3", "5"))

    with pytest.raises(InputError, match=r"a\.jsonl: changed while it was read"):
        load_corpus([path], tokenizer=words, on_trajectory=on_trajectory)


@pytest.mark.fault(
    "a chat template that reaches for Python",
    how="templates that walk to a class, call a builtin, change a list, open a file",
    tries=4,
    outcome="each stopped by Jinja's sandbox, the row refused as template",
)
@pytest.mark.parametrize(
    "reach",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_stays_in_its_sandbox(byte_tokenizer, write, reach, monkeypatch):
    template = "{% if messages[0].content == 'evil' %}" + reach + "{% else %}fine{% endif %}"
    monkeypatch.setattr(byte_tokenizer, "chat_template", template)
    corpus = load_corpus([write("a.jsonl", [chat("x"), chat("evil")])], tokenizer=byte_tokenizer)
    assert refused(corpus) == [("a.jsonl", 1, "template")]
