"""An oracle of provenance: str, int and float that remember whether they came from the request.

Jinja runs unchanged; only the filters and the concatenations that would lose the subclass are
replaced. What it says is compared with the plain ranges of the interpreter under test.
"""
import json
import re

import jinja2
import jinja2.runtime


class T(str):
    """Text with one bool for each character."""

    def __new__(cls, text, mask):
        self = str.__new__(cls, text)
        self.mask = list(mask) if isinstance(mask, (list, tuple)) else [bool(mask)] * len(text)
        assert len(self.mask) == len(text)
        return self

    def __str__(self):
        return self

    def __iter__(self):
        return (T(c, [m]) for c, m in zip(str.__str__(self), self.mask))

    def __getitem__(self, key):
        text = str.__getitem__(self, key)
        return T(text, self.mask[key] if isinstance(key, slice) else [self.mask[key]])

    def __add__(self, other):
        return cat([self, other]) if isinstance(other, str) else NotImplemented

    def __radd__(self, other):
        return cat([other, self]) if isinstance(other, str) else NotImplemented

    def _cut(self, begin, end):
        return T(str.__getitem__(self, slice(begin, end)), self.mask[begin:end])

    def strip(self, chars=None):
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars=None):
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars=None):
        return self._cut(0, len(str.rstrip(self, chars)))

    def split(self, sep=None, maxsplit=-1):
        assert sep is not None
        pieces, begin = [], 0
        for piece in str.split(self, sep, maxsplit):
            pieces.append(self._cut(begin, begin + len(piece)))
            begin += len(piece) + len(sep)
        return pieces

    def splitlines(self, keepends=False):
        lines, begin = [], 0
        for with_end, line in zip(str.splitlines(self, True), str.splitlines(self)):
            lines.append(self._cut(begin, begin + len(line)))
            begin += len(with_end)
        return lines

    def replace(self, old, new, count=-1):
        return cat(join(new, self.split(old, count)))

    def lower(self):
        return cat([T(c.lower(), m) for c, m in zip(str.__str__(self), self.mask)])

    def upper(self):
        return cat([T(c.upper(), m) for c, m in zip(str.__str__(self), self.mask)])


class TI(int):
    pass


class TF(float):
    pass


class TL(list):
    pass


class TD(dict):
    pass


def wrap(value):
    """Request data: every text and number inside is tainted."""
    if isinstance(value, str):
        return T(value, True)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return TI(value)
    if isinstance(value, float):
        return TF(value)
    if isinstance(value, list):
        return TL(wrap(item) for item in value)
    return TD((wrap(key), wrap(item)) for key, item in value.items())


def tainted(value):
    if isinstance(value, T):
        return any(value.mask)
    if isinstance(value, (TI, TF, TL, TD)):
        return True
    if isinstance(value, dict):
        return any(tainted(k) or tainted(v) for k, v in value.items())
    return isinstance(value, (list, tuple)) and any(tainted(item) for item in value)


def text(value):
    """str(value), all of it tainted if any of it is."""
    if isinstance(value, str) or isinstance(value, jinja2.Undefined):
        return value if isinstance(value, T) else T(str(value), False)
    return T(str(value), tainted(value))


def cat(parts):
    parts = [text(part) for part in parts]
    result = T("", [])
    result = str.__new__(T, "".join(str.__str__(part) for part in parts))
    result.mask = [m for part in parts for m in part.mask]
    return result


def join(separator, items):
    parts = []
    for item in items:
        if parts:
            parts.append(separator)
        parts.append(item)
    return parts


def filter_length(value):
    return TI(len(value)) if tainted(value) else len(value)


def filter_join(value, d="", attribute=None):
    assert attribute is None
    return cat(join(d, value))


def filter_format(value, *args):
    args = iter(args)
    return cat([text(next(args)) if re.fullmatch("%[ds]", piece) else piece
                for piece in re.split("(%[ds])", value)])


def filter_indent(value, width=4, first=False, blank=False):
    assert not first and not blank
    lines = (text(value) + "\n").splitlines()
    return cat(join("\n", [(" " * width if i > 0 and line else "") + line
                           for i, line in enumerate(lines)]))


def environment_of(template):
    """The environment of a template that transformers compiled, turned into the oracle."""
    environment = template.environment
    environment.concat = cat
    environment.finalize = text
    environment.filters.update({
        "join": filter_join, "format": filter_format, "indent": filter_indent, "string": text,
        "safe": text, "length": filter_length, "count": filter_length,
        "trim": lambda s, chars=None: text(s).strip(chars),
        "replace": lambda s, old, new, count=-1: text(s).replace(old, new, count),
        "tojson": lambda x, **kw: T(json.dumps(x, ensure_ascii=False, **kw), tainted(x)),
    })
    jinja2.runtime.str_join = cat
    return environment


def byte_ranges(rendered):
    """Merged ranges [begin, end) of tainted text, in bytes of UTF-8."""
    ranges, position = [], 0
    for c, m in zip(str.__str__(rendered), rendered.mask):
        size = len(c.encode())
        if m and ranges and ranges[-1][1] == position:
            ranges[-1][1] = position + size
        elif m:
            ranges.append([position, position + size])
        position += size
    return ranges
