//! The version of the shim's own service (`docs/shim-protocol.md`).

use crate::shim::StateResponse;

/// What a shim that is built from this tells. 2 added `log_stalled_since` of a task, and the version itself; 4 added execs by
/// their command; 5 flow control of streams.
pub const SHIM_PROTOCOL: u32 = 5;

/// The version since which a shim runs a command as the container's own process runs.
pub const EXEC_BY_COMMAND: u32 = 4;

/// The version since which streams with processes are flow-controlled, so that all of them may share one connection.
pub const FLOW_CONTROL: u32 = 5;

/// The version that a shim speaks: shims outlive agents, and the first ones did not tell it.
#[must_use]
pub fn shim_protocol(state: &StateResponse) -> u32 {
    state.protocol_version.max(1)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// An answer of the shim of commit 7a5d009, with one running task.
    const FIRST: &[u8] = b"\x0a\x03pod\x12\x0dSANDBOX_READY\x18\x2a\x20\x05\x2a\x0e\x0a\x02c1\x10\x0a\x18\x02\x20\x07\x28\x08\x38\x09";

    #[test]
    fn a_shim_that_tells_no_version_is_of_the_first() {
        let state = StateResponse::decode(FIRST).unwrap();
        assert_eq!((shim_protocol(&state), state.sandbox_id.as_str(), state.shim_pid), (1, "pod", 42));
        let task = &state.tasks[0];
        assert_eq!(
            (task.id.as_str(), task.pid, task.log_dropped_bytes, task.log_stalled_since),
            ("c1", 10, 9, 0)
        );
        let state = StateResponse { protocol_version: SHIM_PROTOCOL, ..state };
        assert_eq!(shim_protocol(&StateResponse::decode(&*state.encode_to_vec()).unwrap()), SHIM_PROTOCOL);
    }

    #[test]
    fn what_a_later_version_adds_is_not_in_the_way() {
        // Field 100 with seven bytes, behind everything that is known.
        let later = [FIRST, b"\xa2\x06\x07unknown"].concat();
        assert_eq!(StateResponse::decode(&*later).unwrap(), StateResponse::decode(FIRST).unwrap());
    }
}
