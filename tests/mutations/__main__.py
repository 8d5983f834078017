"""``python -m tests.mutations``: whether the tests notice the defects of ``mutations.toml``; ends with a table.

Exit codes: 0, all were caught; 1, some were not; 2, the tests fail without any mutation.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.mutations import runner

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", metavar="TEXT", help="only mutations whose area or effect has this text")
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time (2)")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without a mutation first")
    options = parser.parse_args()
    mutations = [m for m in runner.load() if options.k in f"{m.area} {m.effect}"]
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        if not options.unchecked:
            copy = runner.copy_tree(ROOT, Path(folder, "unchanged"))
            names = sorted({name for mutation in mutations for name in mutation.tests})
            files = [file for name in names for file in runner.test_files(name, copy)]
            code, output = runner.run_pytest(copy, files, runner.UNCHANGED_S)
            if code != runner.PASSED:
                print(f"{output}\nError: these tests fail without any mutation", file=sys.stderr)
                return 2
        attempts = [partial(runner.try_out, mutation) for mutation in mutations]
        results = runner.in_copies(attempts, ROOT, Path(folder), jobs=options.jobs, done=_report)
    print(f"\n{runner.table(results)}")
    return 0 if all(result.outcome == runner.CAUGHT for result in results) else 1


def _report(result: runner.MutationResult) -> None:
    print(f"{result.outcome:<10}  {result.mutation.area}: {result.mutation.effect}", flush=True)
    if result.outcome == runner.INVALID:
        print(result.output[-2000:], flush=True)


if __name__ == "__main__":
    sys.exit(main())
