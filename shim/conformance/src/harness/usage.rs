//! What a container uses, from the statistics of either version of control groups.

use berth_proto::task::{StatsRequest, StatsResponse, task_service};
use berth_proto::{cgroup1, cgroup2, unpack};

use super::task::Task;

/// Use of a container at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Processor time, nanoseconds.
    pub cpu_ns: u64,
    /// Memory, bytes.
    pub memory: u64,
    /// The limit of that.
    pub memory_limit: u64,
    /// Processes.
    pub pids: u64,
}

impl Task<'_> {
    /// Asks for statistics, which must have all of this.
    pub fn usage(&self) -> Usage {
        let request = StatsRequest { id: self.id.clone() };
        let answer: StatsResponse = self.shim.task(task_service::STATS, &request).unwrap();
        let any = answer.stats.unwrap();
        if any.type_url.ends_with("v1.Metrics") {
            let metrics: cgroup1::Metrics = unpack(&any).unwrap();
            let (cpu, memory) = (metrics.cpu.unwrap().usage.unwrap(), metrics.memory.unwrap().usage.unwrap());
            let pids = metrics.pids.unwrap().current;
            Usage { cpu_ns: cpu.total, memory: memory.usage, memory_limit: memory.limit, pids }
        } else {
            let metrics: cgroup2::Metrics = unpack(&any).unwrap();
            let (cpu, memory) = (metrics.cpu.unwrap(), metrics.memory.unwrap());
            let pids = metrics.pids.unwrap().current;
            let cpu_ns = cpu.usage_usec * 1000;
            Usage { cpu_ns, memory: memory.usage, memory_limit: memory.usage_limit, pids }
        }
    }
}
