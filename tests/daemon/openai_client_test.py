#!/usr/bin/env python3
"""Drives a server with the official OpenAI client, over the Unix socket and over TCP.

  openai_client_test.py --server PROGRAM              starts PROGRAM, which prints where it listens
  openai_client_test.py --socket PATH [--tcp HOST:PORT --key KEY] [--real]

--real: a daemon with a real model serves, so words are not compared.
Exits with 77 where the packages `openai` and `httpx` are not installed.
"""

import argparse
import json
import subprocess
import sys

try:
    import httpx
    import openai
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


class Checks:
    def __init__(self, client, where, real):
        self.client = client
        self.where = where
        self.real = real
        self.model = client.models.list().data[0].id

    def said(self, text, words):
        assert text, "no text"
        if not self.real:
            assert words in text, f"{text!r} has no {words!r}"

    def models(self):
        assert self.client.models.retrieve(self.model).id == self.model
        try:
            self.client.models.retrieve("nobody")
        except openai.NotFoundError as error:
            assert error.code == "model_not_found"
        else:
            raise AssertionError("a model that does not exist was found")

    def chat(self):
        answer = self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": "hello you"}],
            max_completion_tokens=20,
            temperature=0,
            seed=1,
            user="me",
            metadata={"a": "b"},
            store=False,
        )
        choice = answer.choices[0]
        self.said(choice.message.content, "hello you")
        assert choice.message.role == "assistant"
        assert choice.finish_reason in ("stop", "length")
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert answer.system_fingerprint is None or isinstance(answer.system_fingerprint, str)

    def chat_stream(self):
        stream = self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": [{"type": "text", "text": "größer 🙂"}]}],
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            top_logprobs=2,
        )
        text, finish, usage, role, tokens = "", None, None, None, 0
        for chunk in stream:
            if chunk.usage:
                usage = chunk.usage
            for choice in chunk.choices:
                role = role or choice.delta.role
                text += choice.delta.content or ""
                tokens += len(choice.logprobs.content) if choice.logprobs else 0
                finish = choice.finish_reason or finish
        self.said(text, "größer 🙂")
        assert role == "assistant" and finish in ("stop", "length")
        assert usage and usage.completion_tokens >= tokens > 0

    def reasoning(self):
        if self.real:
            return
        messages = [{"role": "user", "content": "think"}]
        answer = self.client.chat.completions.create(model=self.model, messages=messages)
        assert answer.choices[0].message.reasoning_content == "hmm"
        assert answer.choices[0].message.content.startswith("You said")
        stream = self.client.chat.completions.create(model=self.model, messages=messages, stream=True)
        reasoning = ""
        for chunk in stream:
            reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
        assert reasoning == "hmm"

    def tools(self):
        if self.real:
            return
        request = {
            "model": self.model,
            "messages": [{"role": "user", "content": "how is the weather"}],
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
        }
        whole = self.client.chat.completions.create(**request).choices[0]
        # The client's own helper puts the deltas together.
        with self.client.chat.completions.stream(**request) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion().choices[0]
        for choice in (whole, streamed):
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "I look."
            calls = choice.message.tool_calls
            assert [call.function.name for call in calls] == ["weather", "weather"]
            arguments = [json.loads(call.function.arguments) for call in calls]
            assert arguments == [{"place": "größer 🙂 </tool_call>"}, {"days": 2}], arguments
            assert calls[0].id != calls[1].id
        request["messages"] += [
            whole.message.model_dump(exclude_none=True),
            *({"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in whole.message.tool_calls),
        ]
        answer = self.client.chat.completions.create(**request)
        assert answer.usage.prompt_tokens > 0
        try:
            self.client.chat.completions.create(**request, tool_choice="required")
        except openai.BadRequestError as error:
            assert error.param == "tool_choice", error
        else:
            raise AssertionError("a call was promised that nobody can force")

    def completions(self):
        answer = self.client.completions.create(
            model=self.model, prompt=["one", "two"], n=2, max_tokens=8, logprobs=2, echo=True
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        for choice in answer.choices:
            assert choice.text.startswith("one" if choice.index < 2 else "two")
            lists = choice.logprobs
            assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs)
            assert len(lists.tokens) == len(lists.text_offset)
            assert lists.token_logprobs[0] is None and lists.token_logprobs[1] is not None
        stream = self.client.completions.create(model=self.model, prompt="a b c", stream=True)
        self.said("".join(chunk.choices[0].text for chunk in stream), "a b c")

    def errors(self):
        try:
            self.client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": "x"}],
                extra_body={"temprature": 1},
            )
        except openai.BadRequestError as error:
            assert error.param == "temprature", error
        else:
            raise AssertionError("an unknown field was taken")
        if self.real:
            return
        stream = self.client.completions.create(model=self.model, prompt="fail", stream=True)
        try:
            finishes = [chunk.choices[0].finish_reason for chunk in stream]
        except openai.APIError as error:
            assert "failed as asked" in str(error)
        else:
            raise AssertionError(f"a failure in mid-stream went unnoticed: {finishes}")

    def leaving(self):
        stream = self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": "a b c d e f"}], stream=True
        )
        next(iter(stream))
        stream.close()

    def run(self):
        names = ["models", "chat", "chat_stream", "reasoning", "tools", "completions", "errors", "leaving"]
        for name in names:
            getattr(self, name)()
            print(f"{self.where}: {name}: ok")


def client_of(base_url, key, socket=None):
    transport = httpx.HTTPTransport(uds=socket) if socket else httpx.HTTPTransport()
    return openai.OpenAI(
        base_url=base_url,
        api_key=key,
        max_retries=0,
        timeout=60,
        http_client=httpx.Client(transport=transport, timeout=60),
    )


def run(socket, tcp, key, real):
    if socket:
        Checks(client_of("http://atlas/v1", "unused", socket), "unix", real).run()
    if tcp:
        Checks(client_of(f"http://{tcp}/v1", key), "tcp", real).run()
        if key:
            try:
                client_of(f"http://{tcp}/v1", "wrong").models.list()
            except openai.AuthenticationError as error:
                assert error.code == "invalid_api_key"
            else:
                raise AssertionError("a wrong key was taken")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server")
    parser.add_argument("--socket")
    parser.add_argument("--tcp")
    parser.add_argument("--key", default="")
    parser.add_argument("--real", action="store_true")
    options = parser.parse_args()
    if not options.server:
        return run(options.socket, options.tcp, options.key, options.real)
    server = subprocess.Popen([options.server], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        place = json.loads(server.stdout.readline())
        run(place["socket"], place["tcp"], place["key"], options.real)
    finally:
        server.stdin.close()
        assert server.wait(timeout=20) == 0, "the server did not end well"


if __name__ == "__main__":
    main()
