#!/usr/bin/env python3
"""Writes the golden data of the chat template tests from jinja2 as transformers sets it up.

Usage: make_golden.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --flash-mini FOLDER
Needs jinja2, transformers and gguf; the tests need none of them. Writes templates/*.jinja for the
two templates that come with models, conversations.json and snippets.json beside this script.
"""
import argparse
import json
import pathlib

import gguf
from transformers.utils.chat_template_utils import _cached_compile_jinja_template

import conversations
import snippets
import tainted

HERE = pathlib.Path(__file__).parent
TRUSTED = ("bos_token", "eos_token")


def extract_templates(gguf_path, flash_mini):
    reader = gguf.GGUFReader(gguf_path)
    field = reader.fields["tokenizer.chat_template"]
    smollm2 = bytes(field.parts[field.data[0]]).decode()
    config = json.loads((pathlib.Path(flash_mini) / "tokenizer_config.json").read_text())
    (HERE / "templates/smollm2.jinja").write_text(smollm2)
    (HERE / "templates/flash_mini.jinja").write_text(config["chat_template"])


def outcome(render):
    try:
        output = render()
        # Python prints where an object lies in memory; the interpreter refuses to.
        return {"error": "Address"} if " at 0x" in output else {"output": output}
    except Exception as error:  # the class is part of the golden data
        return {"error": type(error).__name__, "message": str(error)}


def conversation_result(source, case):
    _, messages, more = case
    values = conversations.variables(messages, more)
    result = outcome(lambda: _cached_compile_jinja_template(source).render(**values))
    if "output" in result and more.get("provenance", True):
        environment = tainted.environment_of(_cached_compile_jinja_template(source))
        wrapped = {key: value if key in TRUSTED else tainted.wrap(value)
                   for key, value in values.items()}
        rendered = environment.from_string(source).render(**wrapped)
        assert str.__str__(rendered) == result["output"], (case[0], rendered, result["output"])
        result["plain"] = [bound for pair in tainted.byte_ranges(rendered) for bound in pair]
    return result


def dump(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write_conversations():
    lines = [dump({"name": name, "variables": conversations.variables(messages, more)})
             for name, messages, more in conversations.CASES]
    templates = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        source = path.read_text()
        results = [dump(conversation_result(source, case)) for case in conversations.CASES]
        templates.append('"%s":[\n%s\n]' % (path.name, ",\n".join(results)))
    (HERE / "conversations.json").write_text(
        '{"cases":[\n%s\n],\n"results":{\n%s\n}}\n' % (",\n".join(lines), ",\n".join(templates)))


def write_snippets():
    lines = []
    for source in snippets.all_snippets():
        result = outcome(lambda: _cached_compile_jinja_template(source).render(**snippets.DATA))
        lines.append(dump({"source": source, **result}))
    (HERE / "snippets.json").write_text(
        '{"variables":%s,\n"snippets":[\n%s\n]}\n' % (dump(snippets.DATA), ",\n".join(lines)))


def write_corpus():
    """Seeds of the fuzz entry: snippets that render, a dozen in a file."""
    folder = HERE.parent.parent / "fuzz/corpus/chat_template"
    folder.mkdir(parents=True, exist_ok=True)
    golden = json.loads((HERE / "snippets.json").read_text())["snippets"]
    sources = [one["source"] for one in golden if one.get("output")]
    for i in range(0, len(sources), 12):
        (folder / f"snippets_{i // 12:02}.jinja").write_text("\n".join(sources[i:i + 12]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--flash-mini", required=True)
    arguments = parser.parse_args()
    extract_templates(arguments.gguf, arguments.flash_mini)
    write_conversations()
    write_snippets()
    write_corpus()


if __name__ == "__main__":
    main()
