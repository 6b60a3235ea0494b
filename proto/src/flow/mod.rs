//! Flow control of `Exec` and `Attach`, without I/O: what each end of a stream keeps.
//!
//! ttrpc has none, and a connection that one stream's reader holds up is held up for all. So who receives grants bytes
//! (`AttachInput.window`, `AttachOutput.window`), who sends sends no more than was granted, and nobody holds a connection
//! (`docs/shim-protocol.md`).
//!
//! ```text
//!   shim    process ─▶ Outbox ─▶ stream ─▶ Inbox ─▶ application    agent
//!           process ◀─ Window ◀─ stream ◀─ Credit ◀─ application
//! ```

mod boxes;
mod credit;
mod queue;
#[cfg(test)]
mod tests;

pub use boxes::{Inbox, Outbox};
pub use credit::{Credit, Overrun, Window};

use crate::shim::{AttachInput, AttachOutput, attach_input, attach_output};

/// Bytes as they are counted.
fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

impl From<attach_input::What> for AttachInput {
    /// A message that grants nothing.
    fn from(what: attach_input::What) -> Self {
        Self { what: Some(what), window: 0 }
    }
}

impl From<attach_output::What> for AttachOutput {
    /// A message that grants nothing.
    fn from(what: attach_output::What) -> Self {
        Self { what: Some(what), window: 0 }
    }
}
