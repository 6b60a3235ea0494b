//! GC: what crashes left is removed, by the records first and by the plugins themselves second.
//!
//! Cached attachments of the networks given are removed whoever made them, as in libcni; those of other networks only
//! when the record is ours, so that a network whose file is gone is cleaned and another runtime's is not touched.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::NetworkList;
use crate::error::CniError;
use crate::name::NetworkName;
use crate::plan::{self, ValidAttachment, Verb};
use crate::record::{Key, Record};
use crate::runtime::{Runtime, within};
use crate::store::Owner;

/// The most time that GC gives one plugin chain, so that one that hangs does not use up the others' time.
pub const STEP_MAX: Duration = Duration::from_secs(30);

/// What GC did. It goes on after a failure.
#[derive(Debug, Default)]
pub struct GcReport {
    /// The attachments it removed.
    pub removed: Vec<Key>,
    /// What failed, in order.
    pub failures: Vec<CniError>,
}

impl Runtime {
    /// Removes every attachment that is not valid, then tells the plugins of 1.1.0 which ones are.
    ///
    /// `valid` is asked once per network, when no ADD of it is running and none can begin: an attachment whose ADD has
    /// finished must be in it. Each network is locked against ADD and DEL meanwhile.
    pub async fn gc(
        &self,
        lists: &[NetworkList],
        valid: impl Fn() -> BTreeSet<ValidAttachment> + Send + Sync,
        deadline: Instant,
    ) -> GcReport {
        let mut report = GcReport::default();
        let current: BTreeMap<&NetworkName, &NetworkList> =
            lists.iter().map(|list| (&list.name, list)).collect();
        let recorded = match self.store(|store| store.all()).await {
            Ok(records) => records,
            Err(error) => {
                report.failures.push(error);
                Vec::new()
            }
        };
        let ours = recorded.into_iter().filter(|(_record, owner)| *owner == Owner::Us);
        let mut networks: BTreeSet<NetworkName> = ours.map(|(record, _owner)| record.key.network).collect();
        networks.extend(lists.iter().map(|list| list.name.clone()));
        for network in networks {
            let list = current.get(&network).copied();
            if list.is_some_and(|list| list.disable_gc) {
                continue;
            }
            if let Err(error) = self.gc_network(&network, list, &valid, deadline, &mut report).await {
                report.failures.push(error);
            }
        }
        report
    }

    async fn gc_network(
        &self,
        network: &NetworkName,
        list: Option<&NetworkList>,
        valid: &(impl Fn() -> BTreeSet<ValidAttachment> + Send + Sync),
        deadline: Instant,
        report: &mut GcReport,
    ) -> Result<(), CniError> {
        let busy = || CniError::busy(Verb::Gc, None, network);
        let guard = within(deadline, self.inner.locks.network(network)).await.ok_or_else(busy)?;
        let valid = valid();
        let records = self.store(|store| store.all()).await?;
        for record in stale(records, network, list.is_some(), &valid) {
            let key = record.key.clone();
            let lock = self.inner.locks.container_within(&guard, &key.container_id);
            let step = deadline.min(Instant::now() + STEP_MAX);
            let _container = within(step, lock).await.ok_or_else(busy)?;
            let netns = record.netns.clone();
            match self.undo(record, &netns, list, step).await {
                Ok(()) => report.removed.push(key),
                Err(error) => report.failures.push(error),
            }
        }
        let Some(list) = list else { return Ok(()) };
        let valid: Vec<_> = valid.into_iter().collect();
        for request in plan::gc(list, &valid, &self.inner.cni_path) {
            let step = deadline.min(Instant::now() + STEP_MAX);
            if let Err(error) = self.run(&list.name, request, step).await {
                report.failures.push(error);
            }
        }
        Ok(())
    }
}

/// The records of a network that GC removes; with no current configuration, only ours.
fn stale(
    records: Vec<(Record, Owner)>,
    network: &NetworkName,
    is_current: bool,
    valid: &BTreeSet<ValidAttachment>,
) -> Vec<Record> {
    records
        .into_iter()
        .filter(|(record, owner)| record.key.network == *network && (is_current || *owner == Owner::Us))
        .map(|(record, _owner)| record)
        .filter(|record| {
            let attachment = ValidAttachment {
                container_id: record.key.container_id.clone(),
                ifname: record.key.ifname.clone(),
            };
            !valid.contains(&attachment)
        })
        .collect()
}
