#!/usr/bin/env python3
"""How fast a server decodes for several clients at once: bench/server_decode.py ds4-server MODEL [CLIENTS...]

Starts the server, lets 1, 2, 4, 8 and 16 clients (or as many as told) stream greedy completions of 160 tokens behind
prompts of some 500 tokens each, and prints one JSON object a line: tokens per second while all of them were decoding,
and the median time from a request to its first token."""
import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time

TOKENS = 160


def start(program, model):
    server = subprocess.Popen([program, "-m", model, "--port", "0", "--sessions", "32", "-c", "16384"],
                              stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        sys.stderr.write(line)
        found = re.search(r"listening on http://\S+:(\d+)", line)
        if found:
            # Somebody has to read on, or the server waits.
            threading.Thread(target=lambda: [None for _ in server.stderr], daemon=True).start()
            return server, int(found.group(1))
    sys.exit("the server did not start")


def stream(port, number, arrivals, waits):
    """One client; when each of its tokens came, and how long it waited for the first."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"prompt": f"Story number {number}: " + "once upon a time there was a cat. " * 40, "max_tokens": TOKENS,
            "temperature": 0, "stream": True}
    asked = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    times = []
    for line in connection.getresponse():
        now = time.monotonic()
        if not line.startswith(b"data: {"):
            continue
        # Progress of the prompt is told in pieces without text.
        if any(choice["text"] for choice in json.loads(line[len("data: "):])["choices"]):
            times.append(now)
    arrivals.append(times)
    waits.append(times[0] - asked)


def measure(port, clients):
    arrivals, waits = [], []
    threads = [threading.Thread(target=stream, args=(port, clients * 100 + i, arrivals, waits)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begin, end = max(times[0] for times in arrivals), min(times[-1] for times in arrivals)
    tokens = sum(begin < time <= end for times in arrivals for time in times)
    rate = tokens / (end - begin)
    return {"clients": clients, "seconds": round(end - begin, 3), "tokens": tokens, "tokens_per_second": round(rate, 1),
            "each": round(rate / clients, 1), "first_token_seconds": round(statistics.median(waits), 3)}


def main():
    program, model, *counts = sys.argv[1:]
    server, port = start(program, model)
    try:
        for clients in [int(count) for count in counts] or (1, 2, 4, 8, 16):
            print(json.dumps(measure(port, clients)), flush=True)
    finally:
        server.terminate()
        server.wait(120)


if __name__ == "__main__":
    main()
