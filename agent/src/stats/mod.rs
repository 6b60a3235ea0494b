//! Statistics of the node and its pods, straight from the kernel's files.
//!
//! ```text
//!   a request ─▶ newest reading, at most 10 s old ─▶ berth_core::stats ─▶ JSON, texts
//!                    │ else: one thread reads cgroups, /proc and namespaces; requests at once share it
//!   walk, every volumeStatsAggPeriod while somebody asks ─▶ workers measure trees and file systems ─┘
//! ```
//!
//! No process is forked and nobody is asked for a container: containerd says once where its layers are, and every few minutes
//! how large new ones are. What is on disks is measured by workers, so what hangs there holds up nobody.

mod asked;
mod cgroupfs;
mod containerd;
mod logs;
mod measure;
mod network;
mod newest;
mod proc;
mod reading;
mod tries;
mod walk;

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use berth_core::{
    config::CgroupVersion,
    stats::{self, Collected, DiskUsage, Machine, Subjects, SystemContainers},
    time::Mono,
};
use jiff::Timestamp;
use tokio::sync::{OnceCell, watch};

pub use self::asked::{Part, Reading};
use self::{cgroupfs::Hierarchy, newest::Newest, reading::Reader, tries::Tries};
use crate::{clock, effects::Host, one_thread::OneThread, view::View};

/// How long a reading may take. Files of the kernel do not wait for a disk, but the machine may be busy.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Why there are no statistics.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// The thread that reads has not come back.
    #[error("read cgroups and /proc: no answer within {} s, the machine is very busy", READ_WITHIN.as_secs())]
    Unanswered,
    /// The root of the hierarchy is not there.
    #[error("read the root cgroup: it is not at {0}")]
    NoRoot(&'static str),
}

/// The statistics. Clones share what was read.
#[derive(Debug, Clone)]
pub struct Stats(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    view: View,
    host: Arc<Host>,
    hierarchy: Hierarchy,
    thread: OneThread,
    newest: Newest<Collected>,
    disks: Mutex<DiskUsage>,
    /// When somebody has asked for what is on disks.
    wanted: watch::Sender<Option<Mono>>,
    /// Requests have the node measured, where that is due.
    node: Tries,
    /// Where containerd has its layers, where it says so.
    layers_dir: OnceCell<Option<String>>,
    /// What the machine is, read once.
    machine: OnceLock<Machine>,
    began: Timestamp,
    own_cgroup: Option<String>,
}

impl Stats {
    /// Statistics of the pods of a view. Nothing is read yet.
    #[must_use]
    pub fn new(view: View, host: Arc<Host>) -> Self {
        let version = host.config.node.cgroups.version;
        let own = proc::text(Path::new("/proc/self/cgroup"));
        let own = own.and_then(|text| stats::own_cgroup(&text, version == CgroupVersion::V2));
        Self(Arc::new(Inner {
            view,
            host,
            hierarchy: Hierarchy::of(version),
            thread: OneThread::default(),
            newest: Newest::default(),
            disks: Mutex::default(),
            wanted: watch::Sender::new(None),
            node: Tries::default(),
            layers_dir: OnceCell::default(),
            machine: OnceLock::default(),
            began: Timestamp::now(),
            own_cgroup: own,
        }))
    }

    /// Reads what is older than [`stats::INTERVAL`], for an answer to be made of.
    pub async fn read(&self, part: Part) -> Reading {
        let read = self.collected().await;
        let disks = match part {
            Part::ProcessorsAndMemory => None,
            Part::Everything => {
                self.0.wanted.send_replace(Some(clock::mono()));
                let stats = self.clone();
                self.0.node.make_if_due(clock::mono, move || stats.measure_node()).await;
                Some(self.disks().clone())
            }
        };
        Reading { read, disks }
    }

    /// The newest reading, made anew when it is older than [`stats::INTERVAL`].
    async fn collected(&self) -> Result<Arc<Collected>, StatsError> {
        let stats = self.clone();
        let read = self.0.newest.get(&self.0.thread, move |before| stats.read_anew(before)).await;
        read.map_err(|_unanswered| StatsError::Unanswered)
    }

    /// In the thread that reads.
    fn read_anew(&self, before: Option<&Collected>) -> Collected {
        let reader = Reader { hierarchy: &self.0.hierarchy, before };
        let facts = reading::Facts {
            name: self.0.host.config.node.name.clone(),
            began: self.0.began,
            machine: self.0.machine.get_or_init(proc::machine).clone(),
        };
        reader.read(self.subjects(), facts)
    }

    /// What there is to count now.
    fn subjects(&self) -> Subjects {
        let config = &self.0.host.config;
        let cgroups = &config.node.cgroups;
        let system = SystemContainers {
            kubelet: self.0.own_cgroup.clone(),
            runtime: config.stats.runtime_cgroup.clone(),
            misc: config.stats.system_cgroup.clone(),
            pods: Some(berth_core::cgroup::names::kubepods(cgroups)),
        };
        let pods = self.0.view.pods();
        let all = pods.iter().map(|view| (&*view.pod, &*view.status, view.sandbox.as_ref()));
        Subjects::of(cgroups, system, all)
    }

    fn disks(&self) -> MutexGuard<'_, DiskUsage> {
        // Nobody leaves a half-made value behind.
        self.0.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
