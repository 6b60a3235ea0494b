//! One connection to a shim for all that is run and streamed in its pod.
//!
//! It is made at its first use and closed when it was idle for some seconds. A task keeps it, and ends with it. A shim of before
//! [`FLOW_CONTROL`] has none: whoever does not read would hold up all that share it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_core::id::SandboxId;
use berth_proto::{
    FLOW_CONTROL,
    client::{CallError, ShimClient},
    shim_protocol,
};
use tokio::{runtime::Handle, sync::watch};

/// How often is looked whether a connection is still used; one that was not since the last look is closed. Longer than between
/// the execs of one who tries something out; a node has hundreds of pods, and most are never exec'd into.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Handles to a connection that nobody uses: that of its slot, and that of the task which keeps it.
const HANDLES_OF_KEEPING: usize = 2;

/// Connections by sandbox. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    slots: Arc<Mutex<BTreeMap<SandboxId, Slot>>>,
    /// Where connections are kept, whoever asks first: those of probes are not to wait for who streams, and none is to end with a
    /// runtime that ends before the agent.
    runtime: Handle,
}

/// What is known of a sandbox's shim.
#[derive(Debug)]
struct Slot {
    /// The version that it speaks, once it has said so. It never changes.
    version: Option<u32>,
    link: Link,
}

#[derive(Debug)]
enum Link {
    None,
    /// It is being made. The other end is dropped when it is there, or is not to be had.
    Making(watch::Receiver<()>),
    Open {
        client: ShimClient,
        /// Since the last look.
        used: bool,
    },
}

impl Connections {
    /// No connection yet. Those to come are kept in a runtime.
    pub(super) fn in_runtime(runtime: Handle) -> Self {
        Self { slots: Arc::default(), runtime }
    }

    /// The shared connection of a sandbox's shim. `None` when it cannot be shared, or not be had: then who asks makes one of
    /// its own, and learns from that.
    pub(super) async fn shared(&self, sandbox: &SandboxId, socket: &Path) -> Option<ShimClient> {
        let mut making = match self.look(sandbox, socket) {
            Look::Open(client) => return Some(client),
            Look::NotShared => return None,
            Look::Making(making) => making,
        };
        // The end of the channel is what is waited for.
        drop(making.changed().await);
        self.take(sandbox)
    }

    /// The version that a sandbox's shim speaks.
    pub(super) async fn version(&self, sandbox: &SandboxId, socket: &Path) -> Result<u32, CallError> {
        if let Some(version) = self.known_version(sandbox) {
            return Ok(version);
        }
        let _shared = self.shared(sandbox, socket).await;
        if let Some(version) = self.known_version(sandbox) {
            return Ok(version);
        }
        let shim = ShimClient::connect(socket).await?;
        Ok(shim_protocol(&shim.state().await?))
    }

    /// Forgets a sandbox that is to be removed. Streams that there are go on.
    pub(super) fn forget(&self, sandbox: &SandboxId) {
        self.lock().remove(sandbox);
    }

    fn known_version(&self, sandbox: &SandboxId) -> Option<u32> {
        self.lock().get(sandbox).and_then(|slot| slot.version)
    }

    /// What is open. One that was lost is not, whether its keeper knows or not.
    fn take(&self, sandbox: &SandboxId) -> Option<ShimClient> {
        match &mut self.lock().get_mut(sandbox)?.link {
            Link::Open { client, used } if !client.is_closed() => {
                *used = true;
                Some(client.clone())
            }
            Link::None | Link::Making(_) | Link::Open { .. } => None,
        }
    }

    /// What there is, or its making, which is begun where there is nothing.
    fn look(&self, sandbox: &SandboxId, socket: &Path) -> Look {
        if let Some(client) = self.take(sandbox) {
            return Look::Open(client);
        }
        let mut slots = self.lock();
        let slot = slots.entry(sandbox.clone()).or_insert(Slot { version: None, link: Link::None });
        if slot.version.is_some_and(|version| version < FLOW_CONTROL) {
            return Look::NotShared;
        }
        // The making of a keeper that was ended goes on no more.
        if let Link::Making(making) = &slot.link
            && making.has_changed().is_ok()
        {
            return Look::Making(making.clone());
        }
        let (made, making) = watch::channel(());
        slot.link = Link::Making(making.clone());
        let keeper = Keeper {
            slots: self.clone(),
            sandbox: sandbox.clone(),
            socket: socket.to_owned(),
            version: slot.version,
        };
        self.runtime.spawn(keeper.run(made));
        Look::Making(making)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a look at a slot showed.
enum Look {
    Open(ShimClient),
    NotShared,
    Making(watch::Receiver<()>),
}

/// Makes a connection and keeps it while it is used.
struct Keeper {
    slots: Connections,
    sandbox: SandboxId,
    socket: PathBuf,
    version: Option<u32>,
}

impl Keeper {
    async fn run(self, made: watch::Sender<()>) {
        let connected = self.connect().await;
        let kept = self.note(connected.ok());
        drop(made);
        let Some(client) = kept else { return };
        loop {
            tokio::select! {
                _lost = client.closed() => return self.close(&client),
                () = tokio::time::sleep(LOOK_EVERY) => if self.is_idle(&client) {
                    return self.close(&client);
                },
            }
        }
    }

    async fn connect(&self) -> Result<(u32, ShimClient), CallError> {
        let client = ShimClient::connect(&self.socket).await?;
        let version = match self.version {
            Some(version) => version,
            None => shim_protocol(&client.state().await?),
        };
        Ok((version, client))
    }

    /// Puts into the slot what came of it; what is to be kept. A slot that nothing is known of goes.
    fn note(&self, connected: Option<(u32, ShimClient)>) -> Option<ShimClient> {
        let mut slots = self.slots.lock();
        let slot = slots.get_mut(&self.sandbox)?;
        slot.link = Link::None;
        let Some((version, client)) = connected else {
            if slot.version.is_none() {
                slots.remove(&self.sandbox);
            }
            return None;
        };
        slot.version = Some(version);
        if version < FLOW_CONTROL {
            return None;
        }
        let client = client.share();
        slot.link = Link::Open { client: client.clone(), used: true };
        Some(client)
    }

    /// Whether nobody uses the connection, nor has since the last look; or nobody can any more.
    fn is_idle(&self, client: &ShimClient) -> bool {
        let mut slots = self.slots.lock();
        match slots.get_mut(&self.sandbox).map(|slot| &mut slot.link) {
            Some(Link::Open { client: known, used }) if known.is_same(client) => {
                !std::mem::take(used) && client.handles() <= HANDLES_OF_KEEPING
            }
            Some(_) | None => true,
        }
    }

    /// Takes the connection out of its slot. Who took it meanwhile goes on with it.
    fn close(&self, client: &ShimClient) {
        if let Some(slot) = self.slots.lock().get_mut(&self.sandbox)
            && matches!(&slot.link, Link::Open { client: known, .. } if known.is_same(client))
        {
            slot.link = Link::None;
        }
    }
}

#[cfg(test)]
mod tests;
