"""Small templates, a construct each; jinja2 says what they render to or fail with."""

DATA = {
    "s": "Hello, World", "u": "Ünïcödé ß ǆ ﬁ", "e": "", "blank": " \t\n x \u3000", "n": 7, "neg": -7,
    "f": 2.5, "t": True, "no": False, "nil": None, "big": 18446744073709551615,
    "l": [3, 1, 2], "ll": [[1, 2], [3, 4], [5]], "words": ["b", "A", "c", "a", "B"],
    "d": {"b": 1, "a": {"x": [1, 2]}, "items": "shadow", "É": None},
    "people": [{"name": "Ann", "age": 31, "tags": ["x"]}, {"name": "bob", "age": 4},
               {"name": "Cid", "age": 31, "tags": []}],
    "esc": "<a href=\"x\">'&'</a>", "lines": "one\ntwo\r\n\nthree\u2028four\n",
    "ctl": "a\x00b\x1f\x7f\u200b\ud7ff\U0001f600\u00ad\"'\\",
}

EXPRESSIONS = """
s
u
e
n
f
t
nil
big
l
d
people
ctl
[ctl]
undefined_name
s.missing
d.missing
d['missing']
d.b
d['b']
d.items
d['items']
d.a.x[1]
d.a['x'][-1]
d.a.x[7]
s[0]
s[-1]
s[99]
s[1:4]
s[-3:]
s[::-1]
s[::2]
s[10:2:-3]
u[2:6]
u[::-1]
l[1:]
l[::-1]
l[-100:100]
l[::0]
s['x']
l['x']
d[l]
(1, 2, 3)[1:]
ll[0][1]
pairs.0
l.0
ll.1.0
1 + 2 * 3
(1 + 2) * 3
7 / 2
8 / 2
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7.5 % 2
-7.5 // 2
2 ** 10
2 ** -1
-2 ** 2
2 ** 3 ** 2
2 ** 0.5
1 / 0
1 // 0
1 % 0
1.0 / 0
10 ** 20
1e3
1.5e-7
0.1 + 0.2
1e16
123456789012345680.0
1e15
0.0001
0.00001
1_000
0x1F + 0b11 + 0o17
.5
1.0
-0.0
3.0 * 2
'a' + 'b'
'a' 'b' "c"
'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'x']
'ab' * 3
3 * 'ab'
[1] * 2
'a' + 1
1 + 'a'
[1] + [2]
[1] + (2,)
l + l
(1,) + (2,)
1 + true
n - neg
+n
-f
-t
-s
not n
not e
not l
1 == 1.0
1 == true
'1' == 1
[1, 2] == [1, 2]
{'a': 1} == {'a': 1.0}
(1,) == [1]
none == false
undefined_name == other_undefined
undefined_name == none
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2 != 1
'a' < 'b'
'Z' < 'a'
'é' > 'z'
[1, 2] < [1, 3]
1 < 'a'
none < 1
undefined_name < 1
undefined_name + 1
'x' + undefined_name
'lo' in s
'' in s
1 in l
9 not in l
'b' in d
1 in d
1 in s
1 in n
'x' in nil
'x' in undefined_name
[1] in [[1]]
[1] in d
1 and 2
0 and 2
0 or 'x'
'' or none
n and s or e
not n == 7
n is defined
undefined_name is defined
undefined_name is undefined
d.missing is defined
d.missing.deeper is defined
nil is none
nil is not none
s is string
n is number
t is number
f is number
t is integer
n is integer
f is float
n is float
l is iterable
s is iterable
n is iterable
undefined_name is iterable
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
n is sequence
undefined_name is sequence
t is boolean
n is boolean
t is true
1 is true
no is false
0 is false
n is odd
n is even
n is divisibleby 7
n is divisibleby(2)
1.5 is even
s is even
n is eq 7
n is equalto(7)
n is ==(7)
n is ne 8
n is gt 6
n is lt 6
n is ge 7
n is le 6
n is greaterthan 6
n is lessthan 6
n is in [1, 7]
n is not in [1, 7]
n in [1] is defined
'abc' is lower
'ABC' is upper
'aBc' is lower
'123' is lower
range is callable
n is callable
undefined_name is callable
none is sameas none
'upper' is filter
'nope' is filter
'odd' is test
(s | safe) is escaped
s is nosuchtest
s | nosuchfilter
s | upper
s | lower
u | upper
u | lower
'hello wORLD foo-bar (baz) [qux' | title
'hello wORLD' | capitalize
u | title
u | capitalize
'ǆabc' | capitalize
blank | trim
'xxaxx' | trim('x')
s | replace('l', 'L')
s | replace('l', 'L', 1)
s | replace('', '-')
'a.b.c' | replace('.', '')
n | replace(7, 8)
s | length
u | length
l | count
d | length
n | length
undefined_name | length
nil | length
l | first
l | last
e | first
[] | first
[] | last
s | first
u | last
d | first
d | last
undefined_name | first
nil | first
l | list
s | list
d | list
undefined_name | list
n | list
l | join
l | join(', ')
s | join('.')
people | join('+', attribute='name')
nil | join
n | string
nil | string
l | string
'42' | int
'42.9' | int
' 42 ' | int
'4_2' | int
'x' | int
'x' | int(5)
'ff' | int(0, 16)
'0xff' | int(base=16)
'0b11' | int(0, 2)
'-17' | int
f | int
t | int
nil | int
l | int
undefined_name | int
'1e400' | int
'1.5' | float
'1e3' | float
'x' | float
'x' | float(1.5)
'inf' | float
' nan ' | float
n | float
nil | float
neg | abs
-2.5 | abs
(-2.5) | abs
s | abs
2.5 | round
3.5 | round
2.567 | round(2)
2.5 | round(0, 'ceil')
2.1 | round(method='ceil')
2.9 | round(0, 'floor')
42.55 | round(1, 'floor')
1234 | round(-2)
1250 | round(-2)
1350 | round(-2)
1234.5 | round(-2)
n | round
2.675 | round(2)
s | round
2.5 | round(0, 'odd')
l | sort
l | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
people | sort(attribute='age') | map(attribute='name') | list
people | sort(attribute='age,name', reverse=true) | map(attribute='name') | join
[1, 'a'] | sort
d | sort
words | unique | list
words | unique(true) | join
[1, 1.0, true, 2] | unique | list
[[1], [1]] | unique | list
people | unique(attribute='age') | map(attribute='name') | list
l | reverse | list
s | reverse
d | reverse | list
n | reverse
l | sum
[1.5, 2] | sum
[] | sum
people | sum(attribute='age')
people | sum('age', 100)
ll | sum(start=[])
words | sum
l | min
l | max
words | min
words | max(case_sensitive=true)
people | max(attribute='age')
[] | min
d | dictsort
{'B': 1, 'a': 2, 'C': 0} | dictsort
{'B': 1, 'a': 2, 'C': 0} | dictsort(true)
{'B': 1, 'a': 2, 'C': 0} | dictsort(false, 'value')
{'B': 1, 'a': 2} | dictsort(reverse=true)
{'B': 1} | dictsort(by='x')
d | items | list
undefined_name | items | list
l | items
people | map(attribute='name') | list
people | map(attribute='tags.0') | list
people | map(attribute='tags', default='-') | list
people | map(attribute='nope') | list
l | map('string') | join
words | map('upper') | list
words | map('replace', 'a', 'z') | list
words | map('nosuch') | list
words | map
undefined_name | map('upper') | list
nil | map('upper') | list
l | select('odd') | list
l | select('gt', 1) | list
[0, 1, '', 'x'] | select | list
l | reject('odd') | list
[0, 1, none] | reject | list
people | selectattr('tags') | map(attribute='name') | list
people | selectattr('age', 'equalto', 31) | map(attribute='name') | list
people | selectattr('tags', 'defined') | list | length
people | rejectattr('age', 'eq', 4) | map(attribute='name') | list
people | selectattr('name', 'in', ['Ann', 'Cid']) | list | count
people | selectattr
l | select('nosuch') | list
l | select('odd') | length
l | select('odd') | last
(l | select('odd'))[0]
l | map('string') | first
l | select('odd') is iterable
l | select('odd') is sequence
undefined_name | default('x')
e | default('x')
e | default('x', true)
nil | default('x')
nil | d('x', boolean=true)
d.missing | default(d.b)
undefined_name | default
lines | indent
lines | indent(2, true)
lines | indent('>>', first=true, blank=true)
n | indent
esc | e
esc | escape | escape
esc | safe
(esc | safe) + '<b>'
'<b>' + (esc | escape)
esc ~ (esc | safe)
d | tojson
d | tojson(indent=2)
people | tojson(indent=1)
[] | tojson(indent=2)
{} | tojson(2)
s | tojson
u | tojson
u | tojson(ensure_ascii=true)
ctl | tojson
ctl | tojson(true)
big | tojson
f | tojson
1e20 | tojson
(1, 2) | tojson
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
{(1, 2): 3} | tojson
d | tojson(sort_keys=true)
d | tojson(separators=(',', ':'))
d | tojson(indent='\\t')
undefined_name | tojson
range(3) | tojson
l | map('string') | tojson
nil | tojson
'%s-%d' | format('a', 5)
'%(x)s' | format(x=1)
'%05.1f|%x|%+d|%-4s|%5s|%%' | format(3.14159, 255, 5, 'ab', 'cd')
'%s' | format
'%d' | format('x')
'%s %s' % (1, 'two')
'%s' % n
'%.3s' % s
'%r' % s
'%s' % [1]
'%s %s' % 1
'x' % 1
'%d' % 2.9
'%e' % 12345.678
'%g' % 0.00001234
'%c' % 'x'
s.upper()
s.lower()
s.title()
"they're bill's".title()
'HELLO wORLD'.capitalize()
blank.strip()
blank.lstrip()
blank.rstrip() ~ '|'
'xyabcyx'.strip('xy')
s.split()
s.split(', ')
'a,b,,c'.split(',')
'a,b,c'.split(',', 1)
'a b  c '.split(None, 1)
'a,b,c'.rsplit(',', 1)
'a b c'.rsplit(maxsplit=1)
'aaa'.rsplit('aa')
'a'.split('')
lines.splitlines()
lines.splitlines(true)
s.startswith('Hell')
s.startswith(('x', 'He'))
s.startswith('lo', 3)
s.startswith(1)
s.endswith('ld')
s.endswith('lo', 0, 5)
s.replace('o', '0')
s.replace('o', '0', 1)
s.replace('o')
s.find('o')
s.find('o', 5)
s.find('zz')
u.find('c')
s.rfind('o')
s.index('W')
s.index('zz')
s.count('l')
s.count('')
', '.join(words)
', '.join([1])
', '.join(n)
'-'.join('abc')
'a'.center(4, '*')
'ab'.center(5, '*') ~ '|'
'a'.ljust(3) ~ '|'
'a'.rjust(3, '0')
'-5'.zfill(4)
'a=b=c'.partition('=')
'a=b=c'.rpartition('=')
'abc'.partition('x')
'prefix-x'.removeprefix('prefix-')
'x.txt'.removesuffix('.txt')
'12'.isdigit()
'1a'.isdigit()
''.isdigit()
'ab'.isalpha()
u.isalpha()
'a1'.isalnum()
' \\t'.isspace()
'AB1'.isupper()
'ab1'.islower()
'{} {}'.format(1, 'x')
'{1} {0}'.format('a', 'b')
'{a}-{b[x]}-{c[0]}'.format(a=1, b={'x': 2}, c=[3])
'{{}} {:>5}|{:<5}|{:^5}|{:*^7}'.format(1, 'a', 'b', 'c')
'{:05d} {:.2f} {:x} {:,} {:+}'.format(42, 3.14159, 255, 1234567, 5)
'{!r}'.format('x')
'{:.2%}'.format(0.256)
'{}'.format()
'{x}'.format(y=1)
'{:d}'.format('x')
'{'.format()
'{} {}'.format(none, [1, 'a'])
s.nosuch
s.nosuch()
s()
s.__class__
d.__class__.__name__
d.get('b')
d.get('zz')
d.get('zz', 5)
d.get([])
d.keys()
d.values() | list
d.a.items()
d.keys() | list | sort
d.a.keys()[0]
d.a.items() | first
l.append(4)
l.append
d.update({})
l.count(1)
l.index(2)
l.index(9)
range(5)
range(5) | list
range(1, 10, 3) | list
range(5, 0, -2) | list
range(3)[1]
range(10)[2:5]
range(10)[::-3] | list
range(0)
3 in range(5)
range(1, 2, 0)
range(100001)
range('x')
dict(a=1, b=2)
dict([('a', 1), ('b', 2)])
dict({'a': 1}, b=2)
dict(1)
{'a': 1, 'b': 2, 'a': 3}
{1: 'x', 1.0: 'y', true: 'z'}
{[1]: 2}
{}
[]
()
(1,)
(1, 2)
[1, 2,]
{'a': 1,}
'x' if t else 'y'
'x' if no else 'y'
'x' if no
('x' if no).y
'a' if no else 'b' if no else 'c'
1 if t else 2 + 3
raise_exception('custom: ' ~ n)
raise_exception(n)
raise_exception()
namespace(a=1).a
namespace(a=1).b
namespace({'x': 5}).x
namespace(_a=1)
namespace()['x']
s | upper | lower | title
s | trim | length > 3
-1 | abs
n + 1 | string
'a' ~ 'b' | upper
'tab\\there' ~ "\\x41\\u00e9\\U0001F600\\101\\q\\'"
'multi
line'
"\\"quoted\\""
'\\N{BULLET}'
'\\xZZ'
'unterminated
s | default(1) | upper
[1, 2, 3] | map('int') | sum
true
True
none
None
[true, none, 1.0, 'a"b', "it's"]
'é' | e
1 2
1 +
(1
1)
{'a' 1}
s.
s[
a b
is
not
x is not
if
1 if
nosuchfunc()
s | replace(old='l', new='1')
s | replace('l', nope=1)
s | replace
s | trim | nosuch
l | join(d='-')
s.split(sep='o', maxsplit=1)
loop
loop.index
self
caller
'a' in ['a'] and 'b' not in ['a']
not 'a' in 'abc'
1 == 1 == 1
(1 == 1) == 1
1 - 1 - 1
2 - -2
2--2
10 // 3 * 3
1 ~ 2 + 3
1 + 2 ~ 3
l | length - 1
l[l | length - 1]
d['a']['x'] | last
words[1:-1] | join
s[:5] ~ s[5:]
s[n:]
s[nil:2]
s[:f]
s[undefined_name:]
nil[1:]
d[:2]
n[1:]
undefined_name[1:]
(l | map('string'))[:1]
'%c%c' % ('x', 233)
'%c' % 'xy'
l[true]
l[1.0]
people[0].name[0] | lower
people | length * 2
(people | length) * 2
""".strip("\n")

STATEMENTS = [
    "{% if n %}a{% elif s %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif s %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif e %}b{% else %}c{% endif %}",
    "{% for x in l %}{{ x }},{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for k, v in d.a.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }};{% endfor %}",
    "{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}",
    "{% for a, b in [[1, 2], [3]] %}{{ a }}{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}",
    "{% for a, b in [1] %}{{ a }}{% endfor %}",
    "{% for (a, b), c in [[[1, 2], 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for c in u %}{{ c }}.{% endfor %}",
    "{% for x in n %}{% endfor %}",
    "{% for x in nil %}{% endfor %}",
    "{% for x in undefined_name %}{{ x }}{% else %}empty{% endfor %}",
    "{% for x in l %}{{ loop.index0 }}{{ loop.index }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in l %}[{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}]{% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle() }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in l %}{{ loop.depth }}{{ loop.depth0 }}{% for y in l %}{{ loop.depth }}{% endfor %}{% endfor %}",
    "{% for x in l %}{{ loop.nosuch }}{% endfor %}",
    "{% for x in l %}{{ loop }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in l %}{% if loop.index == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% continue %}{% else %}never completed{% endfor %}",
    "{% for x in l %}{% break %}{% else %}never completed{% endfor %}",
    "{% for x in l %}{{ x }}{% if loop.last %}{% break %}{% endif %}{% else %}no{% endfor %}",
    "{% break %}",
    "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for x in l %}{% filter upper %}a{% if x == 1 %}{% break %}{% endif %}{% endfilter %}{% endfor %}",
    "{% for x in l recursive %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{% set x = y %}{% endfor %}{{ x }}",
    "{% for y in l %}{% set z = y %}{% endfor %}{{ z is defined }}",
    "{% set x = 1 %}{% for y in l %}{{ x }}{% set x = x + 1 %}{{ x }} {% endfor %}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% if false %}{% set x = 2 %}{% endif %}{{ x is defined }}",
    "{% set ns = namespace(x=0) %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(flag=true) %}{% for y in l if ns.flag %}{{ y }}{% set ns.flag = false %}{% endfor %}",
    "{% set ns = namespace(flag=true) %}{% for y in l if ns.flag %}{{ loop.length }}{{ y }}{% set ns.flag = false %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}",
    "{% set ns = namespace(a=1) %}{{ ns }}",
    "{% set ns = namespace(a=1) %}{% set ns._b = 2 %}",
    "{% set d.x = 1 %}",
    "{% set missing_ns.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = b = 1 %}",
    "{% set a, b = l %}",
    "{% set (a, b) = [1, 2] %}{{ a }}{{ b }}",
    "{% set x = 1, 2 %}{{ x }}",
    "{% set none = 1 %}",
    "{% set 1 = 1 %}",
    "{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x | length }}",
    "{% set x | upper | replace('A', 'z') %}a{{ n }}b{% endset %}{{ x }}",
    "{% set x %}{% set inner = 5 %}{% endset %}{{ inner is defined }}",
    "{% set x = 5 %}{% set x %}{{ x }}{{ x }}{% endset %}{{ x }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=9) }} {{ m(b=1, a=2) }}",
    "{% macro m(a) %}[{{ a }}]{{ a is defined }}{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{{ a + 1 }}{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{{ varargs }}{% endmacro %}{{ m(*l) }}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(**{'a': 1, 'b': 2}) }}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}",
    "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ m() }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}|",
    "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m() %}{% set x = 5 %}{% endmacro %}{{ m() }}{{ x is defined }}",
    "{% macro m() %} a {% endmacro %}{{ m() | trim }}{{ m().strip() }}{{ m() is string }}{{ m is callable }}",
    "{% macro m() %}x{% endmacro %}{{ m }}",
    "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% filter upper %}a{{ s }}b{% endfilter %}",
    "{% filter replace('l', 'L') | trim %} all {% endfilter %}",
    "{% filter nosuch %}x{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}",
    "{% generation %}a{{ s }}{% set g = 1 %}{% endgeneration %}{{ g is defined }}",
    "{%- generation -%} x {%- endgeneration -%}",
    "{% print s, n %}",
    "{% raw %}{{ x }}{% if %}{# c #}{% endraw %}",
    "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "{% raw %}\n x\n  {% endraw %}\n y",
    "  {% raw +%} x{% endraw %}",
    "{% raw %}never ends",
    "{# a comment #}x{# another\nwith lines #}\ny",
    "{#- trim -#}  x  {#- trim -#}  y",
    "{# never ends",
    "{{ never ends",
    "{% if x",
    "{% if true %}",
    "{% endif %}",
    "{% for %}{% endfor %}",
    "{% if true %}{% endfor %}",
    "{% else %}",
    "{% nosuch %}",
    "{% block a %}{% endblock %}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% import 'x' as y %}",
    "{% do 1 %}",
    "{{ }}",
    "{% %}",
    "{{ 1 }",
    "{ { 1 } }",
    "{ {% if t %}}{% endif %}",
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n\n",
    "a\n  {%+ if true %}\n  b\n  {%+ endif %}\nc",
    "a\n{% if true +%}\nb\n{% endif -%}\n\n c",
    "a  {% if true -%}  b  {%- endif %}  c",
    "a  {{- s -}}  b",
    "a\n\n{{- s }}\n\n{{ s -}}\n\nb",
    "  {{ s }}  \n  {% set x = 1 %}  \n  {{ x }}",
    "  {# c #}\n  x\n  {#- c #}\n y",
    "x {# c #}\ny",
    "{% set x = 1 %}\n\n{{ x }}\n",
    "\n\n",
    "",
    "x\r\ny\r{% if true %}\r\nz{% endif %}",
    "\u00a0\u3000{% if true %}x{% endif %}",
    "{{ '%}' }}{% if '%}' %}x{% endif %}{{ '}}' }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}} }}",
    "{{-1}}{{- 1 -}}{{+1}}",
    "{{ s -}} x {{- '' }}",
    "{% if t -%}\n  yes\n{%- else -%}\n  no\n{%- endif %}\n!",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor %}",
    "{%- for x in l %}\n  {{- x }}\n{%- endfor %}\n",
    "\t{% if true %}\tx\t{% endif %}\t\n",
    "{% set x = l | length %}{{ x }}{% set y = x * 2 if x > 2 else 0 %}{{ y }}",
    "{% set ns = namespace(l=[]) %}{% for x in l %}{% set ns.l = ns.l + [x * 2] %}{% endfor %}{{ ns.l }}",
    "{% set ns = namespace(m=none) %}{% macro f() %}F{% endmacro %}{% set ns.m = f %}{{ ns.m() }}",
    "{% for x in l %}{% set ns2 = namespace(v=x) %}{% if loop.first %}{{ ns2.v }}{% endif %}{% endfor %}",
    "{% set g = l | map('string') %}{{ g | join }}|{{ g | join }}",
    "{% set g = l | select('odd') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% endfor %}",
    "{% set x = d.items() | list %}{{ x | length }}",
    "{% set loop = 1 %}{{ loop }}",
    "{% for x in l %}{% set loop = 1 %}{% endfor %}",
    "{% for loop in l %}{% endfor %}",
    "{% if s is string and n is number and not nil %}ok{% endif %}",
    "{% if undefined_name %}a{% else %}b{% endif %}{{ undefined_name }}|",
    "{{ undefined_name.x }}",
    "{{ undefined_name['x'] }}",
    "{{ undefined_name() }}",
    "{{ d.missing.deeper }}",
    "{{ nil.x }}|{{ nil.x is defined }}",
    "{{ n.x }}|",
    "{{ 'x' 'y' if t }}",
    "{% set f = 'abc'.upper %}{{ f() }}",
    "{% for x in range(3) %}{{ x }}{% endfor %}{% for x in range(2, 0, -1) %}{{ x }}{% endfor %}",
    "{% for x in 'ab' ~ 'c' %}{{ x }},{% endfor %}",
    "{% for x in l | sort %}{{ x }}{% endfor %}",
    "{% for x in (1, 2) %}{{ x }}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for p in people %}{{ p.name }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for p in people | selectattr('age', 'gt', 5) | sort(attribute='name', reverse=true) %}{{ p.name }}{% endfor %}",
    "{% if ('a', 1) in [('a', 1)] %}x{% endif %}",
    "line\n{{ nosuchfunc2() if false }}",
    "{% if nosuch3 is defined %}{{ nosuch3() }}{% endif %}ok",
]


def all_snippets():
    expressions = []
    for line in EXPRESSIONS.split("\n"):
        # Escapes of the list above stand for themselves in a template.
        expressions.append("{{ %s }}" % line)
    joined = "\n".join(expressions)
    joined = joined.replace("{{ 'multi }}\n{{ line' }}", "{{ 'multi\nline' }}")
    sources = []
    for source in joined.split("\n{{ "):
        sources.append(source if source.startswith("{{ ") else "{{ " + source)
    for source in sources + STATEMENTS:
        yield source
