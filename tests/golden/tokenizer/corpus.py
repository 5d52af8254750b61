"""The torture corpus: texts that tokenizers get wrong. All written for this project, or drawn at
random with a fixed seed; `cases()` gives (name, text) pairs."""

import random

SENTENCES = {
    "english": "The quick daemon doesn't sleep; it's waiting, we've been told, until they'll call. I'D SAY 'TIS FINE.",
    "german": "Übermütige Käfer fraßen süße Äpfel, während Straßenbahnführer über Grünflächen schimpften.",
    "french": "L'été dernier, où l'on s'était baigné, Noël paraissait loin ; « déjà ? » dit-elle, naïve.",
    "spanish": "¿Dónde está el pingüino? ¡Mañana comeremos piñas en Cádiz!",
    "portuguese": "Não há pão, só maçãs e limões à beira do balcão.",
    "polish": "Zażółć gęślą jaźń, po czym wróć do łóżka.",
    "czech": "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "turkish": "Işıl ışıl İstanbul'da ılık bir öğle; şöför ağaçların gölgesinde.",
    "vietnamese": "Tiếng Việt có nhiều dấu: ắ ằ ẳ ẵ ặ, ướt ươn ưỡn ượng.",
    "russian": "Съешь ещё этих мягких булок, да выпей же чаю. Ёжик в тумане.",
    "ukrainian": "Їжак ґречно з'їв п'ять груш і щавель.",
    "greek": "Ο καλός κυβερνήτης ξέρει πότε φυσάει· ᾄδω, ὦ ἄνδρες Ἀθηναῖοι.",
    "hebrew": "שלום עולם, מה שלומך היום? בְּרֵאשִׁית בָּרָא.",
    "arabic": "السلام عليكم، كيف حالك اليوم؟ الرَّحْمٰنِ الرَّحِيمِ ١٢٣٤٥",
    "persian": "می‌خواهم کتاب‌هایم را بخوانم؛ ۱۲۳",
    "urdu": "آپ کیسے ہیں؟ میں ٹھیک ہوں۔",
    "hindi": "नमस्ते दुनिया, क्या हाल है? क़ख़ग़ज़ड़ढ़ १२३४ श्री",
    "bengali": "আমি বাংলায় গান গাই। কো কৌ ১২৩",
    "tamil": "வணக்கம் உலகம், கொ கோ கௌ ௧௨௩",
    "telugu": "నమస్కారం ప్రపంచం, కైలాసం",
    "kannada": "ನಮಸ್ಕಾರ ಪ್ರಪಂಚ, ಕೊಳ ಕೋಳಿ",
    "malayalam": "നമസ്കാരം ലോകം, കൊച്ചി",
    "sinhala": "ආයුබෝවන් ලෝකය, ශ්‍රී",
    "thai": "สวัสดีครับ วันนี้อากาศดี น้ำใจ ๑๒๓",
    "lao": "ສະບາຍດີ ໂລກ",
    "khmer": "សួស្តី​ពិភពលោក",
    "burmese": "မင်္ဂလာပါ ကမ္ဘာလောက",
    "tibetan": "བཀྲ་ཤིས་བདེ་ལེགས། རྒྱལ་པོ",
    "georgian": "გამარჯობა მსოფლიო, ᲗᲑᲘᲚᲘᲡᲘ",
    "armenian": "Բարեւ աշխարհ, ինչպե՞ս ես։",
    "amharic": "ሰላም ለዓለም፣ እንዴት ነህ? ፩፪፫",
    "chinese": "你好，世界！今天天气怎么样？《史記》一二三四五，零〇。",
    "japanese": "こんにちは世界。カタカナとひらがな、ﾊﾝｶｸ。ガギグゲゴ、は゛、か\u3099",
    "korean": "안녕하세요 세계, 오늘 날씨가 좋네요. 한글\u1112\u1161\u11ab\u1100\u1173\u11af",
    "mongolian": "ᠮᠣᠩᠭᠣᠯ\u180eᠠ ᠪᠢᠴᠢᠭ",
    "cherokee": "ᎣᏏᏲ ᎡᎶᎯ ꭰꭱꭲ",
    "cuneiform": "𒀀𒁀𒂀 𓀀𓀁𓀂",
    "mathematics": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α∧¬β → ∑ᵢ₌₁ⁿ 𝒳𝓎𝔷 ²³¹ ½ ⅔ Ⅻ ⅻ Å Å Ω",
}

EMOJI = [
    "😀😃😄 😁😆",
    "👨‍👩‍👧‍👦 family 👩🏽‍🚀👩‍❤️‍💋‍👨",
    "🇩🇪🇫🇷🇯🇵🇺🇸 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "👍👍🏻👍🏼👍🏽👍🏾👍🏿",
    "☺️❤️‍🔥 ✈︎ ✈️ 1️⃣#️⃣*️⃣",
    "🫠🫨🩷🪿🫎 new ones",
    "a😀b 😀c😀",
]

CODE = [
    'def f(x: int) -> str:\n    """Doc."""\n    return f"{x!r:>10}" if x else None\n',
    "for (size_t i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];  // dot\n}\n\n\n#include <vector>\n",
    '{"key": [1, 2.5e-10, true, null, "a\\u00e9\\n"], "nested": {"x": {}}}',
    "SELECT * FROM t WHERE a>=10 AND b!='x''y' -- comment\n",
    "<html>\r\n  <body class='x'>&nbsp;&lt;tag&gt;</body>\r\n</html>\r\n",
    "$ ls -la | grep '^d' && echo \"$HOME/${USER:-x}\" 2>&1 >/dev/null",
    "fn main() -> Result<(), Box<dyn Error>> { println!(\"{:?}\", vec![1u8; 3]); }",
    "a_snake_case and camelCaseWords, SCREAMING_CASE, kebab-case, x->y::z, !!==<<>>++--**//\\\\",
    "https://example.org/a/b?c=d&e=f#g user@example.com 192.168.0.1 v1.2.3-rc4",
    "\\begin{align} x_{i}^2 &= \\frac{1}{2} \\\\ \\end{align}",
    "AAAAB3NzaC1yc2EAAAADAQABAAABgQC7+/w==",
]

SPACES = [
    " " * 40,
    "a" + " " * 40 + "b",
    " " * 40 + "\n",
    "\t\t\tx\t y \t z",
    "a \n b",
    "a  \n\n  b",
    "\n\n\n",
    "\r\n\r\n  \r\n",
    "line\r\nline\rline\nline\r\n",
    "trailing   ",
    "   leading",
    " \u00a0 \u2003\u2009x\u202f\u205f\u3000y\u1680z",
    "\u180e \u180ex\u180e",
    "\u2028para\u2029line\u0085next",
    "\u000b\u000c\u001c\u001d\u001e\u001fx",
    "\u200b\u200c\u200d\u2060\ufeffx",
    "a\u00adb",
    "   \n   \n   x",
    "x \t\r\n \t\r\n y",
]

CONTROL = [
    "\u0000",
    "a\u0000b\u0000\u0000c",
    "".join(map(chr, range(1, 32))),
    "\u007f\u0080\u0081\u009f",
    "\u001b[31mred\u001b[0m",
    "\ufffd\ufffe\uffff",
    "\U0010ffff\U000f0000\ue000\uf8ff",
    "\u202eright to left\u202c \u2066isolate\u2069",
    "\u0001\u0004\u0006\u0013\u0014\u0016",
]

NUMBERS = [
    "0 1 12 123 1234 12345 123456 1234567 1234567890123456789",
    "3.14159 -2.5e+10 0x1F 1,000,000.00 50% $19.99 10:30:59 2026-01-31",
    "１２３４ ①②③ ⅰⅱⅲ ₁₂₃ ¹²³ ½¾ ٣٤٥ ೧೨೩ 𝟏𝟐𝟑 𝟘𝟙",
    "a1b22c333d4444",
    "1st 2nd 3rd 10th x2 y=3",
]

FORMS = [
    "é e\u0301 E\u0301 e\u0301\u0301 ñ n\u0303",
    "ﬁ ﬂ Å \u212b A\u030a \u1e9b\u0323 s\u0323\u0307 d\u0307\u0323 \u1e0b\u0323",
    "\u0301 \u0301x x\u0301\u0316 x\u0316\u0301 \u0300\u0301\u0302",
    "\u0344 \u0340\u0341 \u0374 \u037e \u0387 \u1fef",
    "\u0958 \u09dc \u0a33 \u0b5c \u0f43 \u0f73 \u0f75 \u0f81",
    "\u09c7\u09be \u0b47\u0b56 \u0bc6\u0bbe \u0cc6\u0cc2\u0cd5 \u0dd9\u0dcf\u0dca",
    "\u1100\u1161\u11a8 \uac00\u11a8 \u1100\u1161 \uac01",
    "\u2000\u2001\u2126\u212a\u2329\u232a",
    "\uf900\ufa10\U0002f800 \ufb1d\ufb2a \ufb4e",
    "\U0001d15e \U0001d1bb \U0001109a \U00011131\U00011127",
    "a\u0315\u0300\u05ae\u0302b a\u059a\u0316\u302a\u0301",
    "Ḁ̶̛̰̿̀̄̏̒͌Z̷̛͎̯͍̀̂a̴̢̛̮͇̅̆̇l̵̡͍̓̄g̸̨͎̾́̚o̷̧̜̊͊̋",
    "x\u0897\u0316y x\u1acf\u0301 x\u1df6\u0316 x\U0001e4ee\u0301",
    "\U00011935\U00011930 \U000105d2\u0307 \U00016d63\U00016d67",
]

CONTRACTIONS = [
    "it's IT'S it’s I'm I'M we'll WE'LL you're YOU'RE they've he'd d'accord 'tis 'S",
    "'s't're've'm'll'd's",
    "don'ſ 'ﬆ 'ẞ 'K'",
    "''s '''",
]

# Letters, digits, marks and unassigned code points of several Unicode versions.
VERSIONS = [
    "\U00031350\U000323af \U0002ebf0 \U0001e4d0\U0001e4f0 \U00010d40\U00010d50\U00010d70",
    "\ua7cb\ua7dc\u1c89\u1c8a \U000116d0\U0001ccf0 \U00011de0\U00016ff4 1\U00011de01",
    "\u0378\u0379 \U000e0080 \U0002fa20 \U00050000 \U0001fbff a\u0378b",
    "\U00011f02\U00011f03\U00011f50 \U00013460\U000143fa",
]

# Written like the special tokens of the models in these tests, and almost.
SPECIAL = [
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_end|>b <|im_end|> <|im_end|>",
    "<|endoftext|><|endoftext|>",
    "<|im_start|<|im_start|>|im_end|> <|im_ end|> <|IM_END|>",
    "<think>\nwhy\n</think>\n\n<tool_call>{}</tool_call>",
    "é<|im_end|>\u0301",
    "<|begin_of_text|>x<|end_of_text|>",
    "plain <mask>  text\n<mask>\u0301 <lone> x<lone> <lone>y(<lone>) \u0301<lone> _<lone> <E\u0301t\u6f22>",
    "<mask><mask> \t<mask>\n\nx <lone><lone>",
]

WORDS = [
    "a" * 300,
    "ab" * 400,
    "abc" * 100,
    "donaudampfschifffahrtsgesellschaftskapitaen" * 8,
    "-" * 200,
    "=" * 63 + "\n" + "=" * 65,
    "あ" * 150,
    "😀" * 70,
    "!?" * 150,
    "1" * 100,
    "\n" * 100,
    "the the the the the the",
    "x" * 47 + " " + "x" * 48 + " " + "x" * 49 + " " + "x" * 64 + " " + "x" * 65,
]


def random_texts():
    """Mixtures that nobody would write down: 160 texts of up to 40 pieces."""
    rng = random.Random(20261129)
    pools = [
        lambda: chr(rng.randrange(0x20, 0x7F)),
        lambda: chr(rng.randrange(0x20, 0x7F)),
        lambda: rng.choice(" \n\t\r\u00a0\u3000'"),
        lambda: chr(rng.randrange(0xA0, 0x600)),
        lambda: chr(rng.randrange(0x600, 0x3100)),
        lambda: chr(rng.randrange(0x300, 0x370)),
        lambda: chr(rng.choice([0x93C, 0x9BE, 0x9C7, 0x3099, 0x1161, 0x11A8, 0x1100, 0xAC00, 0x591, 0x64B])),
        lambda: chr(rng.randrange(0x3100, 0xD800)),
        lambda: chr(rng.randrange(0xE000, 0x10000)),
        lambda: chr(rng.randrange(0x10000, 0x20000)),
        lambda: chr(rng.randrange(0x1F300, 0x1FB00)),
        lambda: rng.choice(["'s", "'ll", " the", "ing", "123", "  ", "\r\n", "<|im_end|>", "un", " a", "e\u0301"]),
    ]
    for index in range(160):
        mix = rng.sample(pools, rng.randrange(1, 5))
        yield f"random_{index}", "".join(rng.choice(mix)() for _ in range(rng.randrange(1, 40)))


def cases():
    yield "empty", ""
    yield from SENTENCES.items()
    for name, texts in {
        "emoji": EMOJI,
        "code": CODE,
        "spaces": SPACES,
        "control": CONTROL,
        "numbers": NUMBERS,
        "forms": FORMS,
        "contractions": CONTRACTIONS,
        "versions": VERSIONS,
        "special": SPECIAL,
        "words": WORDS,
    }.items():
        for index, text in enumerate(texts):
            yield f"{name}_{index}", text
    yield "all_languages", "\n".join(SENTENCES.values())
    yield from random_texts()
