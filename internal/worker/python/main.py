"""The child of package worker: reads one request a line and writes one reply a line.

Started as `python -I main.py SETUP`, with requests on descriptor 3 and replies on
descriptor 4. A half is a module with METHODS = {name: function(params, emit)}; its
libraries are imported when its first method is called, so that the torch half works
without tensorrt and the other way round.
"""
import fcntl
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
HALVES = {"torch": "trtship_torch", "trt": "trtship_tensorrt", "worker": "trtship_probe"}


class Sources(importlib.abc.MetaPathFinder):
    """Finds our own modules without putting their folder on sys.path."""

    def __init__(self):
        self.private = set()  # general names such as "cuda", which only the trt half may have

    def find_spec(self, name, path=None, target=None):
        file = os.path.join(HERE, name + ".py")
        ours = name.startswith("trtship_") or name in self.private
        if path is None and ours and os.path.exists(file):
            return importlib.util.spec_from_file_location(name, file)
        return None


class Reads:
    """Records the files below the user's folders that are opened for reading."""

    def __init__(self, roots):
        self.roots = [os.path.realpath(r) + os.sep for r in roots]
        self.opened = set()
        # Packages may be installed below the configuration's folder.
        self.installed = tuple({os.path.realpath(p) + os.sep for p in (sys.prefix, sys.base_prefix, HERE)})
        sys.addaudithook(self.hook)

    def hook(self, event, args):
        if event == "open" and isinstance(args[0], (str, bytes)):
            mode, flags = args[1], args[2] or 0
            writes = any(c in mode for c in "wax+") if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR)
            if not writes:
                self.opened.add(os.fsdecode(args[0]))

    def files(self):
        loaded = {getattr(m, "__file__", None) for m in list(sys.modules.values())}
        found = {os.path.realpath(p) for p in self.opened | loaded if isinstance(p, str)}
        return sorted(p for p in found if self.inside(p) and not p.endswith(".pyc") and os.path.isfile(p))

    def inside(self, path):
        return path.startswith(tuple(self.roots)) and not path.startswith(self.installed)


def take_descriptors():
    """Move 3 and 4 away, so that what the model starts or closes cannot touch them."""
    files = []
    for fd, mode in ((3, "r"), (4, "w")):
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64)
        os.close(fd)
        files.append(os.fdopen(moved, mode, encoding="utf-8", newline="\n"))
    return files


def limit_memory(megabytes):
    """Limit the address space to so much more than is mapped now."""
    with open("/proc/self/statm", encoding="ascii") as f:
        mapped = int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = mapped + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class Server:
    def __init__(self, setup):
        self.setup = setup
        self.requests, self.replies = take_descriptors()
        self.finder = Sources()
        sys.meta_path.insert(0, self.finder)
        sys.path[:0] = setup["path"]
        self.methods = {}

    def load(self, half):
        if half == "trt":
            self.finder.private |= {n[:-3] for n in os.listdir(HERE) if n.endswith(".py")}
        try:
            module = importlib.import_module(HALVES[half])
        except ImportError as err:
            from trtship_errors import MISSING, Failure, first_line

            raise Failure(
                MISSING, "missing", f"the {half} half cannot be loaded: {first_line(err)}", cause=err,
                hint=f"install what is missing into {sys.prefix}, or choose another Python with --python or TRTSHIP_PYTHON",
            ) from err
        if hasattr(module, "prepare"):
            module.prepare(self.setup)
        if self.setup["memory_mb"]:
            limit_memory(self.setup["memory_mb"])
        return module.METHODS

    def call(self, request):
        half = request["method"].split(".")[0]
        if half not in HALVES:
            raise LookupError(f"no method {request['method']}")
        if half not in self.methods:
            self.methods[half] = self.load(half)
        return self.methods[half][request["method"]](request["params"], lambda event: self.emit(request["id"], event))

    def emit(self, number, event):
        if event["event"] == "progress":
            self.send({"id": number, "progress": {k: event[k] for k in ("done", "total", "label")}})
        elif event["event"] == "reached":
            self.send({"id": number, "reached": event["what"]})
        else:
            print(f"{event.get('severity', 'note')}: {event.get('text', '')}", file=sys.stderr)

    def send(self, reply):
        self.replies.write(json.dumps(reply, allow_nan=False) + "\n")
        self.replies.flush()

    def serve(self):
        from trtship_errors import describe

        for line in self.requests:
            request = json.loads(line)
            try:
                reply = {"id": request["id"], "result": self.call(request)}
            except Exception as err:  # every error is a reply; only death is not
                reply = {"id": request["id"], "error": describe(err, self.setup["reads"])}
            self.send(reply)


def main():
    setup = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    setup["reads"] = Reads(setup["path"])
    sys.argv = ["trtship"]
    Server(setup).serve()


if __name__ == "__main__":
    main()
