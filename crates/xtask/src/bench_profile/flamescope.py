from app.controllers.heatmap import generate_heatmap

heatmap = generate_heatmap(os.path.basename(path), "perf")
print(sum(map(sum, heatmap["values"])))
