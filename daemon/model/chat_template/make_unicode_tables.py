#!/usr/bin/env python3
"""Writes unicode_tables.cpp: the character properties that Python's str methods answer from.

Usage: make_unicode_tables.py > unicode_tables.cpp   (any Python 3; its Unicode version is noted)
"""
import sys
import unicodedata

LIMIT = 0x110000
SURROGATES = range(0xD800, 0xE000)


def ranges(predicate):
    """Maximal runs [first, last] of code points for which the predicate holds."""
    runs, first = [], None
    for cp in range(LIMIT + 1):
        holds = cp < LIMIT and cp not in SURROGATES and predicate(chr(cp))
        if holds and first is None:
            first = cp
        elif not holds and first is not None:
            runs.append((first, cp - 1))
            first = None
    return runs


def mappings(change):
    """Runs (first, last, stride, delta) of one-to-one changes, and the one-to-many changes."""
    runs, special = [], []
    for cp in range(LIMIT):
        if cp in SURROGATES:
            continue
        new = change(chr(cp))
        if len(new) > 1:
            special.append((cp, [ord(c) for c in new]))
        elif ord(new) != cp:
            delta = ord(new) - cp
            if runs and runs[-1][3] == delta:
                first, last, stride, _ = runs[-1]
                step = cp - last
                if step in (1, 2) and (stride == step or first == last):
                    runs[-1] = (first, cp, step, delta)
                    continue
            runs.append((cp, cp, 1, delta))
    return runs, special


def emit(kind, name, rows):
    print(f"const {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        cell = " {" + ", ".join(row) + "},"
        if len(line) + len(cell) > 100:
            print(line)
            line = "   "
        line += cell
    print(line)
    print("};")
    print(f"const size_t {name}Count = {len(rows)};\n")


def main():
    print("// Character properties and case mappings, one table a question. Written by")
    print(f"// make_unicode_tables.py from Unicode {unicodedata.unidata_version}; not edited by hand.")
    print('#include "daemon/model/chat_template/unicode_tables.h"\n')
    print("// clang-format off")
    print("namespace atlas::model::jinja {\n")
    for name, predicate in (("kUnprintable", lambda c: not c.isprintable()),
                            ("kAlpha", str.isalpha), ("kDigit", str.isdigit)):
        emit("CodePointRange", name, [(hex(a), hex(b)) for a, b in ranges(predicate)])
    for name, change in (("Upper", str.upper), ("Lower", str.lower), ("Title", str.title)):
        runs, special = mappings(change)
        emit("CaseRange", f"k{name}", [(hex(a), hex(b), str(s), str(d)) for a, b, s, d in runs])
        emit("CaseSpecial", f"k{name}Special",
             [(hex(cp), "{" + ", ".join(hex(c) for c in (new + [0, 0])[:3]) + "}")
              for cp, new in special])
    print("}  // namespace atlas::model::jinja")


if __name__ == "__main__":
    sys.exit(main())
