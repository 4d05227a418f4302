#!/usr/bin/env python3
"""CPU seconds of text -> folded and perf.data -> folded against the peers, in one run; the least of several turns.

fold.py TEXT [PERF_DATA] [TURNS]   peers: perf, and inferno-collapse-perf (cargo install inferno --root /tmp/inferno)
"""
import os
import resource
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = os.path.join(HERE, "../../../target/release/examples")
INFERNO = os.environ.get("INFERNO", "/tmp/inferno/bin/inferno-collapse-perf")


def run(command):
    wall, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, time.time() - wall


def turns(n, *commands):
    """The commands by turns, so that a busy machine hurts all of them alike."""
    results = [[run(command) for command in commands] for _ in range(n)]
    return [(min(cpu for cpu, _ in column), min(wall for _, wall in column)) for column in zip(*results)]


text = sys.argv[1]
data = sys.argv[2] if len(sys.argv) > 2 else None
n = int(sys.argv[3]) if len(sys.argv) > 3 else 7
size = os.path.getsize(text) / 1e6
one, two, peer = turns(n, f"{OURS}/fold {text} 1", f"{OURS}/fold {text} 2", f"{INFERNO} -n 1 --all {text}")
print(f"text -> folded, {size:.0f} MB: ours {one[0]:.3f} s, inferno {peer[0]:.3f} s: {peer[0] / one[0]:.1f}x")
print(f"two threads: {one[1]:.3f} s -> {two[1]:.3f} s of wall time: {one[1] / two[1]:.2f}x")
if data:
    ours, perf = turns(3, f"{OURS}/fold_data {data}", f"perf script -i {data} | {INFERNO} -n 1 --all")
    print(f"perf.data -> folded: ours {ours[0]:.3f} s, perf script + inferno {perf[0]:.3f} s: {perf[0] / ours[0]:.1f}x")
print("load average", os.getloadavg())
