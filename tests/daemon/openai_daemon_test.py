#!/usr/bin/env python3
"""The official OpenAI client against a real atlasd with a real model, over the Unix socket and TCP.

  openai_daemon_test.py ATLASD MODEL

Exits with 77 where the model is not there or the Python packages are not installed.
"""

import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import openai_client_test as client


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_ready(daemon, path):
    transport = client.httpx.HTTPTransport(uds=path)
    with client.httpx.Client(transport=transport) as http:
        for _ in range(600):
            assert daemon.poll() is None, "atlasd ended before it was ready"
            try:
                if http.get("http://atlas/ready").status_code == 200:
                    return
            except client.httpx.TransportError:
                pass
            time.sleep(0.1)
    raise AssertionError("atlasd is not ready after a minute")


def main():
    program, model = sys.argv[1:]
    if not pathlib.Path(model).exists():
        print(f"skipped: no {model} (tools/fetch_model.sh)")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="atlas-openai-") as folder:
        path, port, key = f"{folder}/atlasd.sock", free_port(), "a-key-of-the-test"
        pathlib.Path(f"{folder}/key").write_text(key + "\n")
        pathlib.Path(f"{folder}/atlasd.yaml").write_text(
            f"model: {{path: '{model}'}}\n"
            f"server: {{socket: {{path: {path}}}, tcp: {{port: {port}, api_key_file: {folder}/key}}}}\n"
        )
        daemon = subprocess.Popen([program, "--config", f"{folder}/atlasd.yaml"])
        try:
            wait_ready(daemon, path)
            client.run(path, f"127.0.0.1:{port}", key, True)
            answer = client.client_of("http://atlas/v1", "unused", path).chat.completions.create(
                model=pathlib.Path(model).stem,
                messages=[{"role": "user", "content": "In one sentence: what is the capital of France?"}],
                max_tokens=40,
                temperature=0,
            )
            print(answer.choices[0].message.content)
            assert "Paris" in answer.choices[0].message.content
        finally:
            daemon.terminate()
            assert daemon.wait(timeout=60) == 0, "atlasd did not end well"


if __name__ == "__main__":
    main()
