//! GC: plugins are told which attachments are valid, and remove what they keep of others.
//!
//! What this runtime itself left is removed by DEL, from its own records; nothing of another runtime is ever removed by
//! its record. A plugin cannot tell whose an attachment is: it removes every one that the list leaves out. So the list is
//! everything that is written down, whoever wrote it, and when it may be too short nobody is asked (decision 0017).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::NetworkList;
use crate::error::CniError;
use crate::plan::{self, GcPlan, ValidAttachment};
use crate::record::Record;
use crate::runtime::Runtime;

/// The most time that all plugins of a chain have together: ADD and DEL on the network wait meanwhile.
pub const GC_WITHIN: Duration = Duration::from_secs(10);

/// What became of GC.
#[derive(Debug)]
pub enum Gc {
    /// Every plugin was asked.
    Asked {
        /// What failed, in order; the rest went on.
        failures: Vec<CniError>,
    },
    /// The network's version has no GC, or its configuration asks not to be collected.
    NotWanted,
    /// Something runs on the network: try again later.
    Busy,
    /// Nobody was asked: these files may be records of attachments and cannot be read.
    Unsure(Vec<PathBuf>),
}

impl Runtime {
    /// The attachments that this runtime has made, or has begun to make, by its own records.
    ///
    /// # Errors
    /// The records cannot be listed.
    pub async fn own(&self) -> Result<Vec<Record>, CniError> {
        self.store(|store| store.own()).await
    }

    /// Tells the plugins of a network which attachments are valid: those that are written down in the cache directory,
    /// and `besides`. Only for a network whose every attachment is there: what another runtime keeps elsewhere, or is
    /// making just now, is removed.
    ///
    /// It takes the network for itself if it is free, and does not wait for it.
    ///
    /// # Errors
    /// The records cannot be listed.
    pub async fn gc(
        &self,
        list: &NetworkList,
        besides: &BTreeSet<ValidAttachment>,
        deadline: Instant,
    ) -> Result<Gc, CniError> {
        if !plan::has_gc(list) {
            return Ok(Gc::NotWanted);
        }
        let Some(_network) = self.inner.locks.network_if_free(&list.name) else { return Ok(Gc::Busy) };
        let deadline = deadline.min(Instant::now() + GC_WITHIN);
        let cached = self.store(|store| store.cached()).await?;
        let requests = match plan::gc(list, &cached, besides, &self.plugins.cni_path) {
            GcPlan::NotWanted => return Ok(Gc::NotWanted),
            GcPlan::Unsure(unreadable) => return Ok(Gc::Unsure(unreadable)),
            GcPlan::Run(requests) => requests,
        };
        let mut failures = Vec::new();
        for request in requests {
            failures.extend(self.run(&list.name, request, deadline).await.err());
        }
        Ok(Gc::Asked { failures })
    }
}
