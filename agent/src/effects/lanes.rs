//! How many effects of a kind run at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::kinds::Lane;

/// Threads for blocking calls: local and short, so that more would only wait for the same disk, and each costs memory.
const FILES: usize = 12;
/// Plugin chains: two cores are busy with four; the rest cover those that wait for a daemon.
const NETWORK: usize = 16;
/// Shims and runtimes being started: beyond a few per core they only slow each other down, and the first pod of a burst
/// should not start last.
const START: usize = 8;
/// Looks at images: each is a few calls.
const IMAGES: usize = 8;
/// Pulls: far above what `maxParallelImagePulls` is ever set to.
const PULLS: usize = 256;
/// Ends: as many as a full node has pods, so that a node being drained is drained at once.
const STOP: usize = 128;

/// The bounds. Clones share them.
#[derive(Debug, Clone)]
pub struct Lanes(Arc<[Arc<Semaphore>; 6]>);

impl Default for Lanes {
    fn default() -> Self {
        Self(Arc::new(
            [FILES, NETWORK, START, IMAGES, PULLS, STOP].map(|bound| Arc::new(Semaphore::new(bound))),
        ))
    }
}

impl Lanes {
    /// Waits for a place.
    pub(super) async fn enter(&self, lane: Lane) -> Option<OwnedSemaphorePermit> {
        let [files, network, start, images, pulls, stop] = &*self.0;
        let semaphore = match lane {
            Lane::Files => files,
            Lane::Network => network,
            Lane::Start => start,
            Lane::Images => images,
            Lane::Pulls => pulls,
            Lane::Stop => stop,
        };
        // Fails only when it is closed, which nobody does.
        Arc::clone(semaphore).acquire_owned().await.ok()
    }
}
