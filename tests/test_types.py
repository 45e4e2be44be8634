"""What an error says, and what it says to do."""

import errno
import os

import pytest

from fedray.types import RunError, first_line, writing


@pytest.mark.parametrize(("code", "remedy"), [(errno.ENOSPC, "free space there"), (errno.EACCES, "make it a folder")])
def test_what_cannot_be_written_is_named_with_a_remedy_that_helps(code, remedy):
    with pytest.raises(RunError, match=rf"^runs/x: cannot be written \(.*\); {remedy}"), writing("runs/x"):
        raise OSError(code, os.strerror(code))


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
