"""Published figures are read as they stand, or refused with the line."""

from decimal import Decimal

import pytest

from routing.core.errors import InputError
from routing.core.published import PublishedWorst
from routing.store.published import read_published_worsts

HEADER = "policy,kind,ep,batch_tokens,worst_imbalance,tokens,source\n"
GOOD = "base,measured,2,200000,1.22,3500000,a page\n"


def _read(tmp_path, text):
    path = tmp_path / "worsts.csv"
    path.write_text(text)
    return read_published_worsts(path)


def test_rows_keep_their_digits_and_an_empty_cell_is_null(tmp_path):
    rows = _read(tmp_path, HEADER + GOOD + 'rollouts,small_sample,8,,1.950,,"a, quoted"\n')
    assert rows == (
        PublishedWorst(
            policy="base",
            kind="measured",
            ep=2,
            batch_tokens=200_000,
            worst_imbalance=Decimal("1.22"),
            tokens=3_500_000,
            source="a page",
        ),
        PublishedWorst(
            policy="rollouts",
            kind="small_sample",
            ep=8,
            batch_tokens=None,
            worst_imbalance=Decimal("1.950"),
            tokens=None,
            source="a, quoted",
        ),
    )
    assert str(rows[1].worst_imbalance) == "1.950"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: the columns are not policy,kind,ep,batch_tokens,worst_imbalance,tokens,source"),
        ("policy,ep\n", ":1: the columns are not policy,kind"),
        (HEADER + GOOD + "base,measured,2\n", ":3: 3 cells, not 7"),
        (HEADER + GOOD.replace("1.22", "1,22"), ":2: 8 cells, not 7"),
        (HEADER + GOOD.replace("1.22", "nan"), ":2: worst_imbalance: 'nan' is not a decimal number"),
        (HEADER + GOOD.replace("1.22", "1.2e0"), ":2: worst_imbalance: '1.2e0' is not a decimal number"),
        (HEADER + GOOD.replace("200000", "200k"), ":2: batch_tokens: '200k' is not a whole number"),
        (HEADER + GOOD.replace(",2,", ",,"), ":2: ep is empty"),
        (HEADER + GOOD.replace("measured", "seen"), ":2: kind 'seen' is none of"),
        (HEADER + GOOD.replace("1.22", "2.5"), ":2: worst_imbalance=2.5 is outside 1 to ep=2"),
        (HEADER + 'base,"measured', ":2: unexpected end of data"),
    ],
)
def test_what_is_no_row_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        _read(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_published_worsts(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="is a directory, not a file"):
        read_published_worsts(tmp_path)
    (tmp_path / "latin.csv").write_bytes(b"policy\xff")
    with pytest.raises(InputError, match="not UTF-8 at byte 6"):
        read_published_worsts(tmp_path / "latin.csv")
