"""Several processes as one run: how they meet, agree, stop and end, and a watchdog for each."""

from resjax.base.processes.agreement import active as active
from resjax.base.processes.agreement import end as end
from resjax.base.processes.agreement import explain as explain
from resjax.base.processes.agreement import first as first
from resjax.base.processes.agreement import gather as gather
from resjax.base.processes.agreement import listen_for_preemption as listen_for_preemption
from resjax.base.processes.agreement import lost as lost
from resjax.base.processes.agreement import reached_sync_point as reached_sync_point
from resjax.base.processes.agreement import shutdown as shutdown
from resjax.base.processes.bring_up import initialize as initialize
from resjax.base.processes.bring_up import refuse_several as refuse_several
