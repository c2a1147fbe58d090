# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Every error code is listed, documented and of a known family."""

from flexckpt.cli.codes import FAMILIES, markdown
from flexckpt.cli.main import main
from flexckpt.codes import CODES
from tests.house.project import ROOT


def test_page_is_up_to_date():
    # To renew it: python -m flexckpt codes --markdown > docs/flexckpt_errors.md
    assert (ROOT / "docs" / "flexckpt_errors.md").read_text() == markdown()


def test_every_code_is_on_the_page_once():
    text = markdown()
    assert [code for code in CODES if text.count(f"| {code} |") != 1] == []


def test_every_family_has_codes():
    assert {code[:4] for code in CODES} == set(FAMILIES)


def test_command_lists_them(capsys):
    assert main(["codes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{code}  {meaning}" for code, meaning in CODES.items()]
