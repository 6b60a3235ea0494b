//! Core dumps of the shim.

use std::fs;

use nix::sys::prctl;

/// `CAP_SYS_PTRACE`, among the capabilities that a process's status has as bits.
const MAY_TRACE: u64 = 1 << 19;

/// Has the kernel write no image of the shim when it crashes, whatever the limits say: it knows what its containers run
/// with, and secrets are in that. Programs that it starts are as they were, since the next program of a process begins
/// without this.
///
/// What is below `/proc/<shim>`, where runtimes join namespaces, can then be opened with `CAP_SYS_PTRACE` alone. A shim
/// without it starts runtimes without it, and stays as it is.
pub(crate) fn keep_out_of_core_dumps() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // It fails only for a value that is none.
    if !may_trace(&status) || prctl::set_dumpable(false).is_err() {
        crate::log::warning!("without CAP_SYS_PTRACE, a crash of the shim may leave secrets in a core dump");
    }
}

/// Whether a process of this status has the capability.
fn may_trace(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & MAY_TRACE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_trace_is_read_of_a_status() {
        for (status, expected) in [
            ("CapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n", true),
            ("CapEff:\t0000000000080000\n", true),
            ("CapEff:\t00000000a80425fb\nCapBnd:\t000001ffffffffff\n", false),
            ("CapEff:\tall\n", false),
            ("", false),
        ] {
            assert_eq!(may_trace(status), expected, "{status:?}");
        }
    }
}
