//! Figures of processes: pids and statistics.

use berth_proto::shim::{ContainerStats, StatsResponse};
use berth_proto::task::{PidsResponse, StatsResponse as TaskStats};
use berth_proto::ttrpc::{Code, Status};
use berth_proto::{process::ProcessInfo, runc::ProcessDetails};
use berth_shim_core::Id;
use prost::Message;

use super::Processes;
use crate::cgroup::Cgroup;

impl Processes {
    /// Processes of a container. Its init is named also after it has exited: containerd shuts down shims without pids.
    pub(in crate::shim) fn pids(&self, task: &Id, init: u32) -> Vec<u8> {
        let mut pids = self.containers.get(task).and_then(|container| container.cgroup.as_ref());
        let mut pids = pids.take().map(|cgroup| cgroup.processes()).unwrap_or_default();
        if !pids.contains(&init) {
            pids.insert(0, init);
        }
        let processes =
            pids.into_iter().map(|pid| ProcessInfo { pid, info: self.exec_details(task, pid) }).collect();
        PidsResponse { processes }.encode_to_vec()
    }

    fn exec_details(&self, task: &Id, pid: u32) -> Option<berth_proto::Any> {
        let (process, _) =
            self.exec_pids.iter().find(|(process, exec)| process.task == *task && **exec == pid)?;
        let exec_id = process.exec.as_ref()?.as_str().to_owned();
        Some(berth_proto::pack(&ProcessDetails { exec_id }))
    }

    pub(in crate::shim) fn task_stats(&self, task: &Id) -> Result<Vec<u8>, Status> {
        let cgroup = self.containers.get(task).and_then(|container| container.cgroup.as_ref());
        let cgroup = cgroup.ok_or_else(|| {
            Status::new(Code::NotFound, format!("container {task} has no cgroup of its own: not found"))
        })?;
        Ok(TaskStats { stats: Some(cgroup.metrics()) }.encode_to_vec())
    }

    pub(in crate::shim) fn own_stats(&self) -> Vec<u8> {
        let stats = |(id, container): (&Id, &crate::container::Container)| {
            let usage = container.cgroup.as_ref()?.usage();
            Some(ContainerStats {
                id: id.as_str().to_owned(),
                cpu_usage_ns: usage.cpu_ns,
                memory_usage_bytes: usage.memory_bytes,
                memory_working_set_bytes: usage.working_set_bytes,
                memory_swap_bytes: usage.swap_bytes,
                pids: usage.pids,
                cpu_pressure: usage.pressure.cpu,
                memory_pressure: usage.pressure.memory,
                io_pressure: usage.pressure.io,
            })
        };
        StatsResponse { containers: self.containers.iter().filter_map(stats).collect() }.encode_to_vec()
    }

    /// The group above those of containers, which is the pod's.
    pub(in crate::shim) fn cgroup_above(&self) -> Option<Cgroup> {
        self.containers.values().find_map(|container| container.cgroup.as_ref()?.parent())
    }
}
