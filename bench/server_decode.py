#!/usr/bin/env python3
"""How fast a server decodes for several clients at once: bench/server_decode.py ds4-server MODEL [CLIENTS...]

Starts the server, lets 1, 2, 4, 8 and 16 clients (or as many as told) stream greedy completions of 160 tokens behind
prompts of some 500 tokens each, and prints one JSON object a line: tokens per second while all of them were decoding."""
import http.client
import json
import re
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


def stream(port, number, arrivals):
    """One client; when each of its tokens came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"prompt": f"Story number {number}: " + "once upon a time there was a cat. " * 40, "max_tokens": TOKENS,
            "temperature": 0, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    arrivals.append([time.monotonic() for line in connection.getresponse() if line.startswith(b"data: {")])


def measure(port, clients):
    arrivals = []
    threads = [threading.Thread(target=stream, args=(port, clients * 100 + i, arrivals)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begin, end = max(times[0] for times in arrivals), min(times[-1] for times in arrivals)
    tokens = sum(begin < time <= end for times in arrivals for time in times)
    rate = tokens / (end - begin)
    return {"clients": clients, "seconds": round(end - begin, 3), "tokens": tokens, "tokens_per_second": round(rate, 1),
            "each": round(rate / clients, 1)}


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
