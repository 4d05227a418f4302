# FlameScope's own functions, from its directory, without its web server: imports that are not used here are stubs.
import os
import sys
import types


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made


directory, path = sys.argv[1:]
app = module("app", __path__=[os.path.join(directory, "app")])
app.config = module("app.config", PROFILE_DIR=os.path.dirname(os.path.abspath(path)))
module("magic", from_file=lambda path, mime: "text/plain")
module("cachetools", cached=lambda cache: lambda function: function, LRUCache=lambda maxsize: None)
module("flask", abort=lambda status: sys.exit("FlameScope aborts with %d" % status))
for kind, reader in [("cpuprofile", "read_offsets"), ("nflxprofile", "readoffsets"), ("trace_event", "read_offsets")]:
    module("app." + kind)
    module("app." + kind + ".heatmap", **{kind + "_" + reader: None})

