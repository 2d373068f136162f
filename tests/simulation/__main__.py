"""``python -m tests.simulation SEED...`` carries out the plans of seeds, makes failing ones shorter and prints plan and trace."""

import sys

from tests.simulation.course import explain, shrink
from tests.simulation.logs import make_log_plan
from tests.simulation.plan import make_plan

for seed in sys.argv[1:]:
    plan = make_log_plan(seed) if seed.startswith("logs") else make_plan(seed)
    print(explain(shrink(plan), lines=200))
