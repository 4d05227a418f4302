import time

from app.controllers.heatmap import generate_heatmap
from app.perf.flame_graph import perf_generate_flame_graph

began = time.monotonic()
generate_heatmap(os.path.basename(path), "perf")
shown = time.monotonic()
perf_generate_flame_graph(os.path.abspath(path), 5, 6)
done = time.monotonic()
print(shown - began, done - shown)
