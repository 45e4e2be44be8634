"""What an error says, and what it says to do."""

import errno
import os
from dataclasses import dataclass
from typing import NewType

import pytest

from fedray.types import RunError, SettingError, check_types, first_line, writing


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "free space there"), (errno.EACCES, "make it a folder"), (errno.ENAMETOOLONG, "shorten it")],
)
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


Rate = NewType("Rate", float)


@dataclass(frozen=True)
class Own:
    rate: Rate = 0.1
    by_layer: dict[str, float] | None = None

    def __post_init__(self):
        check_types(self)


def test_a_new_type_is_what_it_is_made_of_and_a_dict_a_dict():
    assert Own(1, {"a": 2.0}).rate == 1
    with pytest.raises(SettingError, match="rate"):
        Own("much")
    with pytest.raises(SettingError, match="by_layer"):
        Own(1, (1, 2))
