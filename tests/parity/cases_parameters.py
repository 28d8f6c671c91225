"""Each public method with each of its parameters, over the kinds of containers.

``parameters.txt`` has a line per program: the method, the fixtures, and the call. A
parameter has two values or three, the others those that a call needs, and the fixtures
take turns. What the release does wrong is left to the topic of the method.
"""

from frame import FOLDER, cases

CASES = [
    case
    for line in (FOLDER / "parameters.txt").read_text(encoding="utf-8").splitlines()
    for method, fixtures, program in [line.split(" | ", 2)]
    for case in cases(method, program, on=fixtures)
]
