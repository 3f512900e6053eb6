"""Write <group>.lock from <group>.in: exact versions with the hashes of the wheels.

    python3 lock.py GROUP PYTHON3.11 PYTHON3.12

Both interpreters (linux x86_64, with pip) resolve the group; a lock file holds
for both, so they must agree on every version: pin in the .in file what differs.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

here = pathlib.Path(__file__).resolve().parent


def resolve(python, group):
    """Return {name: (version, sha256, url)} of what pip would install."""
    source = here / f"{group}.in"
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:"]
    if "no-deps" in source.read_text():
        command.append("--no-deps")
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        subprocess.run([*command, "--report", report.name, "-r", str(source)], check=True)
        found = json.load(report)["install"]
    return {
        item["metadata"]["name"].lower().replace("_", "-"): (
            item["metadata"]["version"],
            item["download_info"]["archive_info"]["hashes"]["sha256"],
            item["download_info"]["url"],
        )
        for item in found
    }


def size(url):
    if not url.startswith("https:"):
        return 0
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
        return int(answer.headers.get("Content-Length") or 0)


def main():
    group, *pythons = sys.argv[1:]
    resolved = [resolve(p, group) for p in pythons]
    names = sorted(set().union(*resolved))
    differ = [n for n in names if len({r[n][0] for r in resolved if n in r}) > 1]
    if differ or not all(r.keys() == resolved[0].keys() for r in resolved):
        sys.exit(f"the Pythons disagree, pin in {group}.in: {differ or names}")
    lines = [f"# Written by lock.py from {group}.in; install with pip --require-hashes --no-deps."]
    for n in names:
        bytes_ = max(size(r[n][2]) for r in resolved)
        if bytes_:
            lines.append(f"# {n}: {bytes_} bytes")
        hashes = sorted({r[n][1] for r in resolved})
        lines.append(f"{n}=={resolved[0][n][0]} \\")
        lines.append(" \\\n".join(f"    --hash=sha256:{h}" for h in hashes))
    (here / f"{group}.lock").write_text("\n".join(lines) + "\n")


main()
