"""`python -m tests.support.language`: list the sentences and names that are hard to read.

python -m tests.support.language sandq/raft docs/storage.md    list those of these files and directories
python -m tests.support.language --counts                      print the number and the budget of each package
python -m tests.support.language --lower                       lower each budget to the current number of matches
"""

from __future__ import annotations

import argparse
import json

from tests.support.language.checks import BUDGETS, budgets, check_file, counts, files
from tests.support.paths import ROOT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files and directories, from the top of the repository")
    parser.add_argument("--counts", action="store_true", help="print the number and the budget of each package")
    parser.add_argument("--lower", action="store_true", help="lower the budgets to the numbers of today")
    options = parser.parse_args()
    if options.lower:
        found, allowed = counts(), budgets()
        lowered = {name: min(budget, found[name]) for name, budget in sorted(allowed.items()) if found[name]}
        BUDGETS.write_text(json.dumps(lowered, indent=1) + "\n")
    elif options.counts:
        found, allowed = counts(), budgets()
        for name in sorted({*found, *allowed}):
            print(f"{found[name]:6} {allowed.get(name, 0):6}  {name}")
        print(f"{sum(found.values()):6} {sum(allowed.values()):6}  all")
    else:
        wanted = [ROOT / path for path in options.paths] or [ROOT]
        for path in files():
            if any(path == one or one in path.parents for one in wanted):
                for finding in check_file(path):
                    print(f"{finding.path}:{finding.line}: {finding.pattern}: {finding.text}")


if __name__ == "__main__":
    main()
