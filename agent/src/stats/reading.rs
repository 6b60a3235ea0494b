//! One reading of everything, in the thread that reads.

use std::{collections::BTreeMap, path::Path};

use berth_core::stats::{
    Collected, Machine, Node, Sampled, Subjects, disk_stats, memory_info, nano_cores, tasks,
};
use jiff::Timestamp;

use super::{cgroupfs::Hierarchy, network, proc};
use crate::clock;

/// Who reads.
pub(super) struct Reader<'a> {
    pub(super) hierarchy: &'a Hierarchy,
    /// The reading before, for rates.
    pub(super) before: Option<&'a Collected>,
}

/// What is known without reading.
pub(super) struct Facts {
    /// The node's name.
    pub(super) name: String,
    /// When the agent began.
    pub(super) began: Timestamp,
    /// The machine.
    pub(super) machine: Machine,
}

impl Reader<'_> {
    pub(super) fn read(&self, subjects: Subjects, facts: Facts) -> Collected {
        let at = Timestamp::now();
        let memory = memory_info(&text("/proc/meminfo"));
        let machine = Machine { memory, ..facts.machine };
        let booted_at = proc::booted_at();
        let mut levels: BTreeMap<String, Sampled> = BTreeMap::new();
        for path in subjects.levels() {
            if !levels.contains_key(path)
                && let Some(sampled) = self.sample(path, &machine, booted_at)
            {
                levels.insert(path.to_owned(), sampled);
            }
        }
        for container in subjects.pods.iter().flat_map(|pod| &pod.containers) {
            if let Some(sampled) = levels.get_mut(&container.cgroup) {
                sampled.level.tasks.open_files_max = self.hierarchy.open_files_max(&container.cgroup);
            }
        }
        let devices =
            levels.values().flat_map(|sampled| sampled.level.devices.iter().map(|device| device.number));
        let node = Node {
            name: facts.name,
            booted_at,
            agent_began: facts.began,
            network: network::of_node(),
            tasks_max: proc::tasks_max(),
            tasks: tasks(&text("/proc/loadavg")),
            disks: proc::disk_names(devices),
            disk_stats: disk_stats(&text("/proc/diskstats")),
            machine,
        };
        let networks = network::of_pods(&subjects.pods);
        Collected { at, subjects, levels, networks, node }
    }

    fn sample(&self, path: &str, machine: &Machine, booted_at: Option<Timestamp>) -> Option<Sampled> {
        let at = clock::now();
        let read = self.hierarchy.read(path, &machine.memory)?;
        let used = read.level.cpu.map(|cpu| cpu.total_ns);
        let before = self.before.and_then(|before| before.levels.get(path));
        let before = before.and_then(|before| Some((before.at.mono, before.level.cpu?.total_ns)));
        let nano_cores = used.and_then(|used| nano_cores(before, (at.mono, used)));
        let created = read.created.map(|made| booted_at.map_or(made, |booted| made.max(booted)));
        Some(Sampled { at, created, level: read.level, nano_cores })
    }
}

fn text(path: &str) -> String {
    proc::text(Path::new(path)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use berth_core::{
        config::CgroupVersion,
        id::{ContainerId, ContainerName, PodName, PodUid},
        stats::{ContainerSubject, NetworkOf, PodSubject},
    };
    use tempfile::TempDir;

    use super::*;

    fn subjects() -> Subjects {
        let container = |id: &str| ContainerSubject {
            name: ContainerName::new(id),
            id: ContainerId::from_known(id),
            image: String::new(),
            started_at: Timestamp::UNIX_EPOCH,
            cgroup: format!("/kubepods/pod1/{id}"),
        };
        let pod = PodSubject {
            uid: PodUid::new("1"),
            name: PodName { namespace: "n".to_owned(), name: "p".to_owned() },
            started_at: None,
            cgroup: "/kubepods/pod1".to_owned(),
            network: NetworkOf::Node,
            volumes: Vec::new(),
            containers: vec![container("here"), container("gone")],
        };
        Subjects { above: vec!["/kubepods".to_owned()], pods: vec![pod], ..Subjects::default() }
    }

    /// Writes how much processor time a level has used.
    fn use_up(root: &Path, level: &str, micros: u64) {
        let dir = root.join(level);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cpu.stat"), format!("usage_usec {micros}\n")).unwrap();
    }

    #[test]
    fn a_second_reading_has_rates_and_what_has_gone_is_left_out() {
        let root = TempDir::new().unwrap();
        let levels = ["", "kubepods", "kubepods/pod1", "kubepods/pod1/here"];
        levels.iter().for_each(|level| use_up(root.path(), level, 1_000_000));
        let hierarchy = Hierarchy::at(CgroupVersion::V2, root.path());
        let facts =
            || Facts { name: "n".to_owned(), began: Timestamp::UNIX_EPOCH, machine: Machine::default() };
        let read =
            |before: Option<&Collected>| Reader { hierarchy: &hierarchy, before }.read(subjects(), facts());
        let first = read(None);
        let known: Vec<&str> = first.levels.keys().map(String::as_str).collect();
        assert_eq!(known, ["/", "/kubepods", "/kubepods/pod1", "/kubepods/pod1/here"]);
        assert!(first.levels.values().all(|sampled| sampled.nano_cores.is_none()));
        assert!(
            first.node.tasks > Some(0) && first.node.tasks_max > Some(0) && first.node.booted_at.is_some()
        );
        assert!(first.node.machine.memory.total > 0);

        use_up(root.path(), "kubepods", 2_000_000);
        use_up(root.path(), "kubepods/pod1", 500_000);
        fs::remove_dir_all(root.path().join("kubepods/pod1/here")).unwrap();
        let second = read(Some(&first));
        let rate = |level: &str| second.levels.get(level).map(|sampled| sampled.nano_cores);
        assert_eq!(rate("/"), Some(Some(0)));
        assert!(rate("/kubepods").flatten() > Some(0));
        assert_eq!(rate("/kubepods/pod1"), Some(None), "its counter went back");
        assert_eq!(rate("/kubepods/pod1/here"), None);
    }
}
