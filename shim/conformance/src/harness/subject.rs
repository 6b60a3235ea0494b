//! What is under test.

use std::path::PathBuf;

use super::fault::Fault;
use super::runtime::Runtime;

/// A shim's program, and the OCI runtime that it is to use.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The name among others.
    pub name: String,
    /// The shim's program.
    pub shim: PathBuf,
    /// The runtime.
    pub runtime: Runtime,
    /// How long it is made to work before its memory is looked at.
    pub endurance: Endurance,
    /// What is wrong with it on purpose.
    pub fault: Option<Fault>,
}

/// What much use may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endurance {
    /// Containers that are created, started and deleted.
    pub cycles: u32,
    /// By how much private memory may have grown after them, in KiB.
    pub growth_kib_max: u64,
    /// How many descriptors more it may have after ten lives, such as those that wait for a collector.
    pub descriptors_max: usize,
}

impl Endurance {
    /// For a program whose memory is its own: less than 14 bytes for each container.
    pub const EXACT: Endurance = Endurance { cycles: 10_000, growth_kib_max: 128, descriptors_max: 0 };
    /// For a program with a garbage collector, whose memory moves by megabytes.
    pub const COLLECTED: Endurance = Endurance { cycles: 1000, growth_kib_max: 6144, descriptors_max: 7 };
}
