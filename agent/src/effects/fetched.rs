//! When any pull of this agent last got a byte: what a pull that waits for its turn has to know of the others.

use std::sync::{Mutex, PoisonError};

use berth_core::{image::transfer::Transfer, time::Mono};

/// The moment; `None` before the first byte.
#[derive(Debug, Default)]
pub struct PullsFetched(Mutex<Option<Mono>>);

impl PullsFetched {
    /// Takes how far one has come, and gives when any last got a byte.
    pub(in crate::effects) fn with(&self, transfer: &Transfer) -> Option<Mono> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = transfer.fetched().max(*last);
        *last
    }
}
