"""Writes daemon/model/tokenizer/unicode_tables.cpp.

Two tables say where the `tokenizers` package and our libraries know different Unicode versions:
which code points are newer than Unicode 14 (PCRE2 10.42 knows 14, Oniguruma in the package 16), and
which code points its old normalizer leaves alone. Both are measured by asking the package about every
code point; Python's own `unicodedata` must be version 14 (Python 3.11), for it says what is new.

Usage: python make_unicode_tables.py > ../../../daemon/model/tokenizer/unicode_tables.cpp
"""

import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cf").split()
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def of_category(name):
    split = pre_tokenizers.Split(Regex(r"\p{%s}" % name), "removed", invert=True)
    found = set()
    for i in range(0, len(CODE_POINTS), 4096):
        block = CODE_POINTS[i : i + 4096]
        for _, (begin, end) in split.pre_tokenize_str("".join(map(chr, block))):
            found.update(block[begin:end])
    return found


def numeric():
    split = pre_tokenizers.Digits(individual_digits=True)
    found = set()
    for i in range(0, len(CODE_POINTS), 4096):
        text = "".join("a" + chr(c) + "a" for c in CODE_POINTS[i : i + 4096])
        found.update(ord(w) for w, _ in split.pre_tokenize_str(text) if len(w) == 1 and w != "a")
    return found


def ranges(code_points):
    out = []
    for c in sorted(code_points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def rows(entries):
    line = "   "
    for entry in entries:
        if len(line) + 1 + len(entry) > 98:
            print(line)
            line = "   "
        line += " " + entry
    print(line)


def main():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    category = {c: name for name in CATEGORIES for c in of_category(name)}
    moved = []
    for c, name in category.items():
        old = unicodedata.category(chr(c))
        if old not in ("Cn", name):
            moved.append(f"U+{c:04X} from {old} to {name}")
            assert old[0] == name[0] == "M", f"{moved[-1]}: the tables cannot say that"
    newer = {c: n for c, n in category.items() if unicodedata.category(chr(c)) == "Cn"}

    nfd = normalizers.NFD().normalize_str
    parts = set()
    for c in CODE_POINTS:
        if (text := nfd(chr(c))) != chr(c):
            parts.add(c)
            parts.update(map(ord, text))
    # A mark of the lowest class (1) moves in front of whatever else has a class; class 1 itself
    # moves in front of class 230.
    inert = {
        c
        for c in category
        if (c in newer or category[c][0] == "M")
        and c not in parts
        and nfd("a" + chr(c) + "\u0334") == "a" + chr(c) + "\u0334"
        and nfd("a\u0301" + chr(c)) == "a\u0301" + chr(c)
    }

    digits = numeric() - {c for c, n in category.items() if n[0] == "N"}
    print("// Written by tests/golden/tokenizer/make_unicode_tables.py; do not edit.")
    print(f"// Measured on `tokenizers` {tokenizers.__version__} against Unicode {unicodedata.unidata_version}.")
    print(f"// Not in the tables: marks that moved inside M: {', '.join(moved)}.")
    print('#include "daemon/model/tokenizer/unicode_tables.h"\n\n#include <iterator>\n\nnamespace atlas::model {\n')
    print("// clang-format off")
    print("const CategoryRange kNewerThanUnicode14[] = {")
    entries = [
        f"{{0x{a:x}, 0x{b:x}, {{'{n[0]}', '{n[1]}'}}}},"
        for n in CATEGORIES
        for a, b in ranges(c for c in newer if newer[c] == n)
    ]
    rows(entries)
    print("};\nconst size_t kNewerThanUnicode14Count = std::size(kNewerThanUnicode14);\n")
    print("const CodePointRange kNumericBeyondCategories[] = {")
    rows(f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges(digits))
    print("};\nconst size_t kNumericBeyondCategoriesCount = std::size(kNumericBeyondCategories);\n")
    print("const CodePointRange kInertInNormalization[] = {")
    rows(f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges(inert))
    print("};\nconst size_t kInertInNormalizationCount = std::size(kInertInNormalization);")
    print("// clang-format on\n\n}  // namespace atlas::model")


main()
