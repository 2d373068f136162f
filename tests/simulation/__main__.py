"""``python -m tests.simulation SEED...`` carries out the plans of seeds, makes failing ones shorter and prints plan and trace."""

import sys

from tests.simulation.course import explain, shrink
from tests.simulation.logs import make_log_plan
from tests.simulation.plan import make_plan, make_replicated_plan

for seed in sys.argv[1:]:
    kind, _, number = seed.rpartition(":")
    plan = {"logs": make_log_plan, "replicated": make_replicated_plan}.get(kind, make_plan)(number)
    print(explain(shrink(plan), lines=200))
