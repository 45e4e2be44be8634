import cProfile
import pstats
import sys
import time

from fedray.federate.in_process import LocalFederation
from tests.benchmarks.noop import noop_plan

plan = noop_plan(100, 40)
f = LocalFederation(plan, "vmap")
it = iter(f)
next(it)
t = time.process_time()
p = cProfile.Profile()
if len(sys.argv) > 1:
    p.enable()
for _ in range(20):
    next(it)
p.disable()
print("ms per client-round", (time.process_time() - t) / 20 / 100 * 1e3)
if len(sys.argv) > 1:
    pstats.Stats(p).sort_stats("tottime").print_stats(28)
