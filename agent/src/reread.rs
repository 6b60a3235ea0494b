//! Containerd's own configuration, read again when it changes: what it says is for pods that begin later.
//!
//! A file that is wrong or gone changes nothing: what held last holds, and the fault is told until it is mended.

mod watched;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use berth_core::config::CgroupDriver;
use tokio::{sync::watch, task::spawn_blocking, time::timeout};

use self::watched::Watched;
use crate::{
    config::{CurrentRuntime, Loaded, RuntimeSource, Section},
    view::{Problem, View},
};

/// How long a read may take before the file system is told to be silent. It is still waited for.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// What is followed, and where changes are told.
#[derive(Debug)]
pub(crate) struct Follower {
    /// Where settings come from.
    pub(crate) source: Arc<RuntimeSource>,
    /// The driver that the node began with, and keeps.
    pub(crate) driver: CgroupDriver,
    /// Those who use them.
    pub(crate) current: watch::Sender<CurrentRuntime>,
    /// Those who look.
    pub(crate) view: View,
    /// What was told of settings that do nothing; `None` before the first read, of which the start has told.
    pub(crate) told: Option<BTreeSet<String>>,
}

impl Follower {
    /// Reads until the agent stops.
    pub(crate) async fn run(mut self) {
        let mut watched = Watched::new();
        loop {
            let Loaded { section, directories } = self.read().await;
            // What changed before it was watched is in no event.
            if watched.begins(directories).await {
                continue;
            }
            match section {
                Ok(section) => self.take(&section),
                Err(faults) => self.keep(faults.to_string()),
            }
            watched.changed().await;
        }
    }

    async fn read(&self) -> Loaded {
        loop {
            let source = Arc::clone(&self.source);
            let mut reading = spawn_blocking(move || source.read());
            let read = loop {
                match timeout(READ_WITHIN, &mut reading).await {
                    Ok(read) => break read,
                    Err(_elapsed) => self.keep("its file system does not answer".to_owned()),
                }
            };
            match read {
                Ok(loaded) => return loaded,
                // The agent is stopping.
                Err(_cancelled) => std::future::pending().await,
            }
        }
    }

    fn take(&mut self, section: &Section) {
        let settings = match self.source.resolve(section) {
            Ok(settings) => settings,
            Err(error) => return self.keep(error.to_string()),
        };
        self.view.set_runtime_problem(None);
        self.warn(section);
        self.current.send_if_modified(|current| {
            let is_new = *current.settings != settings;
            if is_new {
                let handlers: Vec<_> = settings.handlers.keys().map(String::as_str).collect();
                tracing::info!(handlers = handlers.join(" "), "settings of the runtime have changed");
                current.settings = Arc::new(settings);
            } else if current.fault.is_some() {
                tracing::info!("containerd's configuration can be used again");
            }
            current.fault.take().is_some() || is_new
        });
    }

    /// What held last holds on.
    fn keep(&self, fault: String) {
        self.current.send_if_modified(|current| {
            let is_new = current.fault.as_ref() != Some(&fault);
            if is_new {
                tracing::error!(
                    fault,
                    "containerd's configuration cannot be used; what held before holds on"
                );
                let place = "containerd's configuration".to_owned();
                self.view.set_runtime_problem(Some(Problem { place, message: fault.clone() }));
                current.fault = Some(fault);
            }
            is_new
        });
    }

    /// Tells what is said and does nothing, once.
    fn warn(&mut self, section: &Section) {
        let ignored = section
            .not_acted_on
            .iter()
            .map(|said| format!("containerd's {} in {} is not acted on", said.value, said.file.display()));
        let driver = section.systemd_cgroup.as_ref().and_then(|said| {
            let is_other = said.value != (self.driver == CgroupDriver::Systemd);
            let file = said.file.display();
            is_other.then(|| {
                format!("SystemdCgroup = {} in {file} is for the next start of the agent", said.value)
            })
        });
        let all: BTreeSet<String> = ignored.chain(driver).collect();
        if let Some(told) = &self.told {
            all.difference(told).for_each(|warning| tracing::warn!("{warning}"));
        }
        self.told = Some(all);
    }
}

#[cfg(test)]
mod tests;
