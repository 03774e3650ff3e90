"""What tests/pages.py takes for a block, and that a page which says something else than the program fails."""

import pytest

from tests import pages
from tests.pages import Block, assert_shown, blocks_of, forms_of, run_page


def _block(**fields):
    return Block(**{"page": "page.md", "line": 1, "kind": "text", "code": "", **fields})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```yaml\na: 1\n```\n", "page.md:1: a block of 'yaml'"),
        ("```console twice\n$ true\n```\n", "page.md:1: a block of 'console twice'"),
        ("words\n\n```text\n1.0\n```\n", "page.md:3: text that no sh or python block"),
        ("```console\n$ true\n```\n\n```text\n1.0\n```\n", "page.md:5: text that no sh or python block"),
        ("- item\n  ```sh\n  false\n  ```\n", "page.md: a fence that opens or closes no block of ours, among lines [2, 4]"),
        ("~~~sh\nfalse\n~~~\n", "page.md: a fence that opens or closes no block of ours, among lines [1, 3]"),
        ("```sh\nfalse\n", "page.md: a fence that opens or closes no block of ours, among lines [1]"),
    ],
)
def test_no_block_of_an_unlisted_kind_escapes(text, said):
    with pytest.raises(AssertionError) as raised:
        blocks_of("page.md", text)
    assert said in str(raised.value)


def test_a_block_is_not_run_only_where_the_reader_is_told_why():
    text = "```sh\ntrue\n```\n\n*Not run: it needs a GPU.*\n\n```sh\nfalse\n```\n\n```text\n80 GB\n```\n\n```sh\ntrue\n```\n"
    why = "it needs a GPU"
    assert [(block.line, block.not_run) for block in blocks_of("page.md", text)] == [(1, None), (7, why), (11, why), (15, None)]


def test_an_indented_command_is_a_form_up_to_what_is_said_of_it():
    assert forms_of("    routing show RUN   what it holds\n\n    worst = 1.0\n") == ("routing show RUN",)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("imbalance 1.25", "imbalance 1.25   \n"),
        ("measured in 12.5 s, hash 0a1b2c3d", "measured in 3 s, hash ffff0000ffff0000"),
        ("begun 2026-11-30 10:00:00Z", "begun 2027-01-02 11:12:13Z"),
        ("first\n...\nlast", "first\nmiddle 7\nlast"),
        ("first\n...\nlast", "first\nlast"),
        ("12 tokens of ... in all", "12 tokens of 90 trajectories in all"),
    ],
)
def test_time_hashes_and_what_is_left_out_may_vary(shown, printed):
    assert_shown(_block(), shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("imbalance 1.25", "imbalance 1.26"),
        ("12 bytes", "13 bytes"),
        ("allowance 1.4", "allowance 1.4\nwarning: small"),
        ("first\n...\nlast", "first\nmiddle"),
        ("of ... in all", "of 90\nin all"),
    ],
)
def test_nothing_else_may_vary(shown, printed):
    with pytest.raises(AssertionError, match=r"page\.md:1: the page shows"):
        assert_shown(_block(), shown, printed)


def test_a_measured_number_may_be_off_by_one_part_in_fifty():
    block = _block(is_measured=True)
    assert_shown(block, "layer 5: 1.50, 10,000 rows", "layer 5: 1.52, 9,900 rows")
    with pytest.raises(AssertionError, match=r"the page shows 1\.50, printed was 1\.54"):
        assert_shown(block, "layer 5: 1.50, 10,000 rows", "layer 5: 1.54, 9,800 rows")
    with pytest.raises(AssertionError, match=r"the page shows\nlayer 5"):
        assert_shown(block, "layer 5: 1.50", "layer 6: 1.50")
    assert_shown(block, "...\n4 ranks: 2.0", "2 ranks: 1.5\n4 ranks: 2.01")


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Runs a page of the text given."""

    def run(text):
        monkeypatch.setattr(pages, "read_page", lambda _: text)
        return run_page("page.md", tmp_path)

    return run


def test_blocks_run_in_order_in_one_folder_and_each_is_held_to_what_it_prints(ran):
    text = """```sh
echo 96794 > lengths.txt
```

```console
$ routing wave --lengths lengths.txt --ep 2 --cp 2 --model qwen3.6-35b-a3b > wave.yaml
$ grep attention_rows wave.yaml
- attention_rows: [48397, 48397]
```

```python
print(open("wave.yaml").read().count("48397"))
```

```text
4
```
"""
    assert ran(text)[1:3] == ("- attention_rows: [48397, 48397]\n", "4\n")
    with pytest.raises(AssertionError, match=r"page\.md:15: the page shows\n5"):
        ran(text.replace("\n4\n", "\n5\n"))


def test_what_the_program_warns_of_is_shown_too(ran):
    text = "```console\n$ routing allowance --ep 8 --batch-tokens 20k\n...\nwarning: ... has 200000...\n...\n```\n"
    assert "warning: below_fitted_batch" in ran(text)[0]


@pytest.mark.parametrize("command", ["routing allowance --ep 16 --batch-tokens 200k", "grep nothing /dev/null"])
def test_a_command_that_fails_fails_its_page(ran, command):
    with pytest.raises(AssertionError, match=r"page\.md:1: .*exit code"):
        ran(f"```sh\n{command}\n```\n")


def test_a_block_that_is_not_run_does_nothing(ran, tmp_path):
    assert ran("*Not run: it takes a night.*\n\n```sh\ntouch done\n```\n") == ("",)
    assert not (tmp_path / "done").exists()


def test_the_demos_corpus_is_cut_and_a_target_of_make_is_not_run(ran):
    text = "```console\n$ make nothing-that-exists\n$ echo routing measure data/demo/trajectories/shop.jsonl{}\n{}\n```\n"
    corpus = "routing measure data/demo/trajectories/shop.jsonl"
    assert ran(text.format("", f"{corpus} --max-tokens 20k"))
    assert ran(text.format(" --max-tokens 9k", f"{corpus} --max-tokens 9k"))
