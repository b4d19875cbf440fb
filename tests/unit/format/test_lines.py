"""Line protocol: what lines mean, where one is wrong, and that all three parsers agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import BadLineError, OptionError, WrongTypeError
from stratalog.format import lines
from stratalog.format.lines import PRECISIONS, Rows, parse_lines
from stratalog.format.points import FieldType, escape, series_key, series_tags

Row = tuple[dict[str, str], int, dict[str, Any]]


def rows(found: dict[str, Rows]) -> dict[str, list[Row]]:
    """Points one by one, in the order of their lines."""
    return {name: list(map(_row(one), range(len(one.times)))) for name, one in found.items()}


def _row(one: Rows) -> Any:
    def row(place: int) -> Row:
        fields = {
            name: column.values[place].item()
            if column.type != FieldType.TEXT
            else column.values[place]
            for name, column in one.fields.items()
            if column.valid is None or column.valid[place]
        }
        return series_tags(one.series[int(one.codes[place])]), int(one.times[place]), fields

    return row


def parse(text: str, precision: str = "ns", now: int = 5) -> dict[str, list[Row]]:
    """Lines as rows."""
    return rows(parse_lines(text, precision, now))


def test_a_line_has_a_measurement_tags_fields_and_a_time() -> None:
    """The example of the documentation."""
    found = parse("cpu,host=a user=72.5,system=7.4 1708700400000", "ms")
    assert found == {"cpu": [({"host": "a"}, 1708700400000 * 10**6, {"user": 72.5, "system": 7.4})]}


def test_each_type_of_field_has_its_spelling() -> None:
    """Floats, ints with i and u, bools in five spellings each, text in double quotes."""
    text = 'm f=1,g=-2.5e3,h=.5,i=7i,j=-7i,k=9u,t=t,T=T,a=true,b=True,c=TRUE,o=f,p=False,s="x y"'
    (tags, time, fields) = parse(text)["m"][0]
    assert (tags, time) == ({}, 5)
    assert fields == {
        "f": 1.0, "g": -2500.0, "h": 0.5, "i": 7, "j": -7, "k": 9, "t": True, "T": True,
        "a": True, "b": True, "c": True, "o": False, "p": False, "s": "x y",
    }  # fmt: skip
    assert type(fields["f"]) is float
    assert type(fields["i"]) is int
    assert type(fields["t"]) is bool


def test_escapes_take_the_meaning_of_a_separator_away() -> None:
    """In the measurement, in tags, in names of fields, and quotes in texts."""
    text = r'a\ b\,c,t\ ag=v\,1\=\\,u=\x f\=1="q\"\\ , =\n" 7'
    assert parse(text) == {"a b,c": [({"t ag": "v,1=\\", "u": "\\x"}, 7, {"f=1": 'q"\\ , =\\n'})]}


def test_quotes_mean_nothing_in_tags() -> None:
    """They are part of the value there."""
    assert parse('m,t="a",u=3.5" v=1 7') == {"m": [({"t": '"a"', "u": '3.5"'}, 7, {"v": 1.0})]}


def test_comments_empty_lines_and_carriage_returns_are_passed_over() -> None:
    """Also at the end, and before the first line."""
    text = '# a "comment\n\n  \nm v=1 1\r\n  # another\nm v=2 2\n\n'
    assert parse(text) == {"m": [({}, 1, {"v": 1.0}), ({}, 2, {"v": 2.0})]}
    assert parse("") == {}
    assert parse("# nothing") == {}


def test_a_text_may_have_line_breaks() -> None:
    """The line then goes on, and the next one is counted right."""
    assert parse('m v="a\nb" 1\nm v="c" 2') == {"m": [({}, 1, {"v": "a\nb"}), ({}, 2, {"v": "c"})]}
    with pytest.raises(BadLineError) as caught:
        parse('m v="a\nb" 1\nm v= 2')
    assert (caught.value.line, caught.value.column) == (3, 5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_time_is_in_the_precision_that_is_given(precision: str) -> None:
    """Hours to nanoseconds."""
    many = "\n".join("m v=1 9" for _ in range(20))
    for text in ("m v=1 9", many):
        assert {row[1] for row in parse(text, precision)["m"]} == {9 * PRECISIONS[precision]}


def test_points_of_several_measurements_are_told_apart() -> None:
    """With fields that only some of them have."""
    found = parse("a v=1 1\nb,x=1 w=2i 2\na,x=1 w=t 3\na v=4 4")
    assert found == {
        "a": [({}, 1, {"v": 1.0}), ({"x": "1"}, 3, {"w": True}), ({}, 4, {"v": 4.0})],
        "b": [({"x": "1"}, 2, {"w": 2})],
    }


def test_ints_and_floats_of_one_field_are_floats() -> None:
    """In whichever order they come."""
    assert parse("m v=1i 1\nm v=0.5 2") == {"m": [({}, 1, {"v": 1.0}), ({}, 2, {"v": 0.5})]}
    assert parse("m v=0.5 1\nm v=1i 2") == {"m": [({}, 1, {"v": 0.5}), ({}, 2, {"v": 1.0})]}


def test_the_order_of_tags_does_not_matter() -> None:
    """Both lines are of one series."""
    found = parse_lines("m,a=1,b=2 v=1 1\nm,b=2,a=1 v=2 2")["m"]
    assert found.series == [series_key({"a": "1", "b": "2"})]
    assert found.codes.tolist() == [0, 0]


WRONG = [
    ("m", 2, "the name of a field is missing"),
    ("m ", 3, "the name of a field is missing"),
    (",t=1 v=1", 1, "the measurement is missing"),
    ("m,t v=1", 4, "an equals sign has to follow the tag 't'"),
    ("m,=1 v=1", 3, "the name of a tag is missing"),
    ("m,t= v=1", 5, "the value of tag 't' is missing"),
    ("m,t=1,t=2 v=1", 7, "the tag 't' is there twice"),
    ("m,t=a=b v=1", 6, "a comma or a space has to follow a tag"),
    ("m v", 4, "an equals sign has to follow the field 'v'"),
    ("m v=", 5, "the value of field 'v' is missing"),
    ("m v=1,", 7, "the name of a field is missing"),
    ("m v=1,v=2", 7, "the field 'v' is there twice"),
    ("m v=abc", 5, "no number, bool, or text"),
    ("m v=1x", 5, "no number"),
    ("m v=nan", 5, "no number"),
    ("m v=inf", 5, "no number"),
    ("m v=1e999", 5, "too large"),
    ("m v=0x10", 5, "no number"),
    ("m v=1_0", 5, "no number"),
    ("m v=truE", 5, "no number"),
    ("m v=9223372036854775808i", 5, "64 bits"),
    ("m v=-1u", 5, "64 bits"),
    ('m v="a', 5, "not closed"),
    ('m v="a"b', 8, "has to follow a field"),
    ("m v=1 1.5", 7, "not a whole number"),
    ("m v=1 now", 7, "not a whole number"),
    ("m v=1 -1", 7, "before 1970"),
    ("m v=1 9223372036854775807", 7, "after 2230"),
    ("m v=1 1 2", 9, "nothing may follow"),
    ("é,ü=1 ö=x", 9, "no number"),
    ("m v=t 1\nm v=1 2", 5, "was bool in a line before"),
]


@pytest.mark.parametrize(("text", "column", "what"), WRONG)
def test_a_wrong_line_is_named_with_its_column(text: str, column: int, what: str) -> None:
    """After good lines as well as alone; comments and empty lines count."""
    own = text.count("\n")
    for before, line in (("", 1), ("m w=1 1\n\n# x\n", 4), ("m,t=1 w=1 7\n" * 20, 21)):
        with pytest.raises(BadLineError, match=what) as caught:
            parse(before + text)
        assert (caught.value.line, caught.value.column) == (line + own, column)
        assert f"Line {line + own}, column {column}" in str(caught.value)


def test_what_are_no_lines_is_refused() -> None:
    """Types, precisions and bytes that are not UTF-8."""
    with pytest.raises(WrongTypeError):
        parse_lines(["m v=1"])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="precision='d'"):
        parse_lines("m v=1", "d")
    with pytest.raises(OptionError):
        parse_lines("m v=\udc80")
    for bad in (b"m\xff v=1", b"m,\xff=1 v=1", b"m,t=\xff v=1", b"m \xff=1", b'm v="\xff"'):
        with pytest.raises(BadLineError, match="UTF-8"):
            parse_lines(bad + b" 1")
        with pytest.raises(BadLineError, match="UTF-8"):
            parse_lines((bad + b" 1\n") * 20)


# --- all ways agree -------------------------------------------------------------------------

names = st.text('ab,= \\"#é', min_size=1, max_size=3).filter(lambda name: name[-1] != "\\")
plain = st.text("abXé1", min_size=1, max_size=3)
floats = st.floats(allow_nan=False, allow_infinity=False).map(repr)
ints = st.integers(-(1 << 63), (1 << 63) - 1).map(lambda one: f"{one}i")
bools = st.sampled_from(["t", "F", "true", "False", "TRUE"])
strings = st.text('ab,= \\"\n#', max_size=4).map(
    lambda text: '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))
)


@st.composite
def one_line(draw: st.DrawFn, name: st.SearchStrategy[str]) -> str:
    """A line that is right."""
    tags = draw(st.lists(name, max_size=2, unique=True))
    head = ",".join(
        [
            escape(draw(st.sampled_from(["m", "n"]))),
            *(f"{escape(t)}={escape(draw(name))}" for t in tags),
        ]
    )
    fields = draw(st.lists(name, min_size=1, max_size=3, unique=True))
    values = [draw(st.one_of(floats, ints, bools, strings)) for _ in fields]
    body = ",".join(f"{escape(f)}={v}" for f, v in zip(fields, values, strict=True))
    return f"{head} {body}" + draw(st.sampled_from(["", " 7", " 123456789", "  8 "]))


@settings(deadline=None)
@given(st.lists(one_line(names) | st.sampled_from(["", "# x", "m v", "m v=1 x"]), max_size=6))
def test_the_regular_expressions_read_what_the_careful_parser_reads(given: list[str]) -> None:
    """They give the same, or leave it to the careful one: never something else."""
    data = "\n".join(given).encode()
    fast = lines._parse_matches(data, 1, 5)
    if fast is not None:
        assert rows(fast) == rows(lines._parse_each(data, 1, 5))
        for name, one in lines._parse_each(data, 1, 5).items():
            if '"' not in data.decode():  # texts have line breaks
                assert [fast[name].line(k) for k in range(len(one.times))] == [
                    one.line(k) for k in range(len(one.times))
                ]


@st.composite
def alike(draw: st.DrawFn) -> str:
    """Lines of one shape, mostly."""
    tags = draw(st.lists(plain, max_size=2, unique=True))
    fields = draw(st.lists(plain, min_size=1, max_size=3, unique=True))
    kinds = [draw(st.sampled_from([floats, ints, bools])) for _ in fields]
    found = []
    for _ in range(draw(st.integers(16, 22))):
        head = ",".join(["m", *(f"{tag}={draw(plain)}" for tag in tags)])
        body = ",".join(f"{f}={draw(k)}" for f, k in zip(fields, kinds, strict=True))
        found.append(f"{head} {body} {draw(st.integers(0, 1 << 61))}")
    if draw(st.booleans()):
        place = draw(st.integers(0, len(found) - 1))
        spoil = draw(st.sampled_from(["m v=1 1", "m v=nan 1", "", "x", "m,a=b b=1", "m,a= b=1 1"]))
        found[place] = spoil
    return "\n".join(found) + draw(st.sampled_from(["", "\n"]))


@settings(deadline=None, max_examples=60)
@given(alike())
def test_the_csv_parser_reads_what_the_careful_parser_reads(text: str) -> None:
    """It gives the same, or leaves it to the others."""
    fast = lines._parse_alike(text.encode(), 1)
    if fast is not None:
        assert rows(fast) == rows(lines._parse_each(text.encode(), 1, 5))


def test_lines_of_one_shape_take_the_fast_way() -> None:
    """Otherwise the test above would hold of nothing."""
    text = "".join(f"cpu,host=h{i % 3},os=x u={i}.5,n={i}i,b=t {i}\n" for i in range(40)).encode()
    fast = lines._parse_alike(text, 1)
    assert fast is not None
    assert rows(fast) == rows(lines._parse_each(text, 1, 0))
    assert len(fast["cpu"].series) == 3
    assert np.array_equal(fast["cpu"].fields["n"].values, np.arange(40))
    general = lines._parse_matches(text, 1, 0)
    assert general is not None
    assert rows(general) == rows(fast)
