"""What an exception says in one line."""

import pytest

from fedray.types import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n  one  \ntwo"), "one  "),
        (TimeoutError(), "TimeoutError"),
        (OSError(" \n "), "OSError"),
    ],
)
def test_the_first_line_of_an_error_exists_even_where_it_says_nothing(error, line):
    assert first_line(error) == line
