//! What probes cost: many pods that are each asked every second.

use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use super::idle;
use super::pair::{Both, Pair, Side};
use super::pods::{self, Probe};
use crate::figure::{Figure, Unit};

/// Time for what starts leave behind.
const SETTLE: Duration = Duration::from_secs(10);
const WINDOW: Duration = Duration::from_secs(60);
/// The aim beside the kubelet.
const AIM: f64 = 0.2;
/// Calls of the probed program, for what it costs by itself.
const CALLS: u32 = 200;

/// Measures with so many pods, on one node after the other: together they would take the machine from each other.
pub(super) fn measure(pair: &Pair, count: usize) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (probe, name, programs) in
        [(Probe::Http, "HTTP", 0.0), (Probe::Exec, "exec", program()? * count as f64)]
    {
        let section = format!("{count} pods probed every second by {name}");
        let mut used = Both::<f64>::default();
        for side in Side::BOTH {
            let names: Vec<String> = (0..count).map(|number| format!("probe-{side}-{number}")).collect();
            pods::fill(pair, side, &names, probe)?;
            thread::sleep(SETTLE);
            *used.of(side) = *idle::window(pair, WINDOW, &[side])?.of(side) - programs;
            pods::delete(pair, &names)?;
        }
        for side in Side::BOTH {
            let name = format!("{side}: CPU of the daemons, less the probed programs'");
            figures.push(Figure::new(&section, &name, *used.of(side), Unit::Millicores));
        }
        figures.push(
            Figure::new(&section, "berth / kubelet", used.berth / used.kubelet, Unit::Times).at_most(AIM),
        );
    }
    Ok(figures)
}

/// The processor time that one call of the probed program takes, in milliseconds: millicores where it is called every second. A shim
/// counts it as its child's.
fn program() -> Result<f64> {
    let used = || -> Result<i64> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        Ok(usage.user_time().num_microseconds() + usage.system_time().num_microseconds())
    };
    let before = used()?;
    for _ in 0..CALLS {
        let status = Command::new("/bin/busybox").arg("true").status()?;
        ensure!(status.success(), "busybox true ended with {status}");
    }
    Ok((used()? - before) as f64 / 1e3 / f64::from(CALLS))
}
