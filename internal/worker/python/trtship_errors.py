"""Errors that are answers, and how any error becomes a reply."""
import json
import traceback

# Exit codes of package failure.
USAGE, MISSING, MODEL, EXPORT, BUILD, BUG = 2, 3, 4, 5, 7, 70


class Failure(Exception):
    """Something that could not be done, for a reason that the user can mend.

    kind: load, trust, forward, signature, export, missing, usage.
    """

    def __init__(self, code, kind, message, hint="", where="", details=(), cause=None):
        super().__init__(message)
        self.code, self.kind, self.hint, self.where = code, kind, hint, where
        self.details = [{"label": label, "value": str(value)} for label, value in details]
        self.__cause__ = cause


def first_line(err):
    """The exception's type and the first line of its text."""
    text = str(err).strip().split("\n")[0]
    return f"{type(err).__name__}: {text}" if text else type(err).__name__


def place(err, reads):
    """file:line of the innermost frame in the user's own code, or ''."""
    while err is not None:
        for frame in reversed(traceback.extract_tb(err.__traceback__)):
            if reads.inside(frame.filename):
                return f"{frame.filename}:{frame.lineno}"
        if isinstance(err, SyntaxError) and err.filename and reads.inside(err.filename):
            return f"{err.filename}:{err.lineno}"
        err = err.__cause__ or err.__context__
    return ""


def out_of_memory(err):
    while err is not None:
        text = str(err)
        if isinstance(err, MemoryError) or "can't allocate memory" in text or "std::bad_alloc" in text or "Cannot allocate memory" in text:
            return True
        err = err.__cause__ or err.__context__
    return False


def describe(err, reads):
    """The error of a reply."""
    trace = "".join(traceback.format_exception(err))
    if out_of_memory(err):
        return {"code": MODEL, "kind": "memory", "message": f"out of memory: {first_line(err)}", "trace": trace}
    if isinstance(err, Failure):
        return {
            "code": err.code, "kind": err.kind, "message": str(err), "hint": err.hint,
            "where": err.where or place(err, reads), "details": err.details, "trace": trace if err.__cause__ else "",
        }
    if isinstance(getattr(err, "details", None), dict):  # BuildError of the TensorRT half
        details = [{"label": k, "value": v if isinstance(v, str) else json.dumps(v)} for k, v in err.details.items()]
        return {"code": BUILD, "kind": "build", "message": str(err), "details": details, "data": err.details, "trace": trace}
    return {"code": BUG, "kind": "bug", "message": first_line(err), "where": place(err, reads), "trace": trace}
