"""Read JUnit files with two Python parsers and demand that they see what is there."""

import sys
import xml.etree.ElementTree as ET

import junitparser
import xunitparser


def truth(path):
    cases = ET.parse(path).getroot().iter("testcase")
    seen = []
    for c in cases:
        kinds = [k for k in ("error", "failure", "skipped") if c.find(k) is not None]
        seen.append((c.get("classname"), c.get("name"), kinds[0] if kinds else "passed"))
    return seen


def by_junitparser(path):
    seen = []
    for suite in junitparser.JUnitXml.fromfile(path):
        for case in suite:
            kind = "passed"
            for r in case.result:
                kind = {"Error": "error", "Failure": "failure", "Skipped": "skipped"}[type(r).__name__]
            if case.time is None:
                raise SystemExit(f"{path}: {case.name} has no time")
            seen.append((case.classname, case.name, kind))
    return seen


def by_xunitparser(path):
    with open(path, encoding="utf-8") as f:
        suite, _ = xunitparser.parse(f)
    seen = []
    for case in suite:
        kind = {"success": "passed", "error": "error", "failure": "failure", "skipped": "skipped"}[case.result]
        seen.append((case.classname, case.methodname, kind))
    return seen


def main(paths):
    if not paths:
        raise SystemExit("no files")
    for path in paths:
        want = truth(path)
        if not want:
            raise SystemExit(f"{path}: no test cases")
        for read in (by_junitparser, by_xunitparser):
            got = read(path)
            if got != want:
                diff = [p for p in zip(want, got) if p[0] != p[1]][:3]
                raise SystemExit(f"{path}: {read.__name__} sees {len(got)} of {len(want)} cases: {diff}")
        print(f"{path}: {len(want)} cases, as junitparser and xunitparser see them")


main(sys.argv[1:])
