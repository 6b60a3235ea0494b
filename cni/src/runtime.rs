//! The verbs: plans carried out, under the locks, with the records kept.
//!
//! Order on disk: intent, ADD, result; and DEL, result removed, intent removed. A crash in between leaves an intent, and
//! with it everything a DEL needs.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use crate::attachment::Attachment;
use crate::config::NetworkList;
use crate::disk::{Disk, RECORDS_WITHIN};
use crate::error::{CniError, PluginFailure};
use crate::invoke::{self, GoOn, Programs};
use crate::locks::Locks;
use crate::name::{ContainerId, NetworkName, PluginType};
use crate::plan::{self, CheckPlan, Request, Verb};
use crate::record::{Key, Record};
use crate::result::AddResult;
use crate::store::{CachedResult, Store, StoreError};
use crate::version::SpecVersion;

/// Where plugins and records are.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// The directories searched for plugins, in order. The default is `/opt/cni/bin`.
    pub bin_dirs: Vec<PathBuf>,
    /// The directory of results, shared with other runtimes. The default is libcni's, `/var/lib/cni`.
    pub cache_dir: PathBuf,
    /// The directory of this runtime's own records. No other runtime may write there, nor another process of this one:
    /// what is in it counts as ours. The default is `/var/lib/cni/attachments`.
    pub records_dir: PathBuf,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            bin_dirs: vec!["/opt/cni/bin".into()],
            cache_dir: "/var/lib/cni".into(),
            records_dir: "/var/lib/cni/attachments".into(),
        }
    }
}

/// Why a [`RuntimeConfig`] was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// There is nowhere to search for plugins.
    #[error("no directory to search for CNI plugins is configured")]
    NowhereToSearch,
    /// A directory of plugins cannot be part of `CNI_PATH`.
    #[error("the CNI plugin directory {0:?} must be absolute and without ':'")]
    UnfitBinDir(PathBuf),
    /// The cache directory is relative.
    #[error("the CNI cache directory {0:?} must be absolute")]
    RelativeCache(PathBuf),
    /// The directory of records is relative.
    #[error("the directory of CNI records {0:?} must be absolute")]
    RelativeRecords(PathBuf),
}

/// Runs plugins. Clones share locks and records; there must be one per directory of records.
#[derive(Debug, Clone)]
pub struct Runtime {
    pub(crate) inner: Arc<Inner>,
    pub(crate) plugins: Arc<Plugins>,
}

/// Where plugins are.
#[derive(Debug)]
pub(crate) struct Plugins {
    bin_dirs: Vec<PathBuf>,
    /// The same, as plugins are told.
    pub(crate) cni_path: OsString,
}

impl Plugins {
    fn new(bin_dirs: Vec<PathBuf>) -> Result<Self, SetupError> {
        if bin_dirs.is_empty() {
            return Err(SetupError::NowhereToSearch);
        }
        let unfit = |dir: &&PathBuf| !dir.is_absolute() || dir.as_os_str().as_encoded_bytes().contains(&b':');
        if let Some(dir) = bin_dirs.iter().find(unfit) {
            return Err(SetupError::UnfitBinDir(dir.clone()));
        }
        let cni_path = plan::cni_path(&bin_dirs);
        Ok(Self { bin_dirs, cni_path })
    }
}

#[derive(Debug)]
pub(crate) struct Inner {
    store: Store,
    disk: Disk,
    go_on: GoOn,
    pub(crate) locks: Locks,
}

impl Runtime {
    /// Takes the directories; nothing is read or made yet.
    ///
    /// # Errors
    /// A directory is relative, or cannot be part of `CNI_PATH`.
    pub fn new(config: RuntimeConfig) -> Result<Self, SetupError> {
        let RuntimeConfig { bin_dirs, cache_dir, records_dir } = config;
        let plugins = Arc::new(Plugins::new(bin_dirs)?);
        if !cache_dir.is_absolute() {
            return Err(SetupError::RelativeCache(cache_dir));
        }
        if !records_dir.is_absolute() {
            return Err(SetupError::RelativeRecords(records_dir));
        }
        let store = Store::new(&cache_dir, &records_dir);
        let inner = Inner { store, disk: Disk::default(), go_on: GoOn::default(), locks: Locks::default() };
        Ok(Self { inner: Arc::new(inner), plugins })
    }

    /// From now on a plugin goes on when its caller gives up, as it does when this process is killed: for one that is about to
    /// end. A DEL that is cut off may leave what no later one finds, such as rules for the address of a link that has gone.
    pub fn let_plugins_go_on(&self) {
        self.inner.go_on.begin();
    }

    /// The same runtime, with its locks and records, which searches plugins elsewhere.
    ///
    /// # Errors
    /// A directory is relative, or cannot be part of `CNI_PATH`.
    pub fn searching(&self, bin_dirs: Vec<PathBuf>) -> Result<Self, SetupError> {
        Ok(Self { inner: Arc::clone(&self.inner), plugins: Arc::new(Plugins::new(bin_dirs)?) })
    }

    /// The directories that are searched for plugins, in order.
    #[must_use]
    pub fn bin_dirs(&self) -> &[PathBuf] {
        &self.plugins.bin_dirs
    }

    /// Attaches a container to a network.
    ///
    /// What an earlier ADD of the same attachment left, finished or not, is removed first by its own record. After an
    /// error a [`Runtime::del`] must follow; the record for it is kept.
    ///
    /// # Errors
    /// The first plugin that failed, or the record could not be kept.
    pub async fn add(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Instant,
    ) -> Result<AddResult, CniError> {
        let mut record = Record::intent(list, attachment);
        let key = record.key.clone();
        let _guard = self.lock(Verb::Add, &key, deadline).await?;
        let read = key.clone();
        if let Some(earlier) = self.store(move |store| Ok(store.read(&read))).await? {
            self.undo(earlier, &attachment.netns, Some(list), deadline).await?;
        }
        let intent = record.clone();
        self.store(move |store| store.write_intent(&intent)).await?;
        let (result, written) = self.add_all(list, attachment, deadline).await?;
        record.result = Some(written);
        self.store(move |store| store.write_result(&record)).await?;
        Ok(result)
    }

    /// Detaches a container from the network of one interface, by the record of its ADD.
    ///
    /// Without a record, `current` is used, as the attachment may be older than the records; without that too, there is
    /// nothing to do. It may be repeated. A network namespace that no longer exists is passed as empty.
    ///
    /// # Errors
    /// The first plugin that failed; the record is kept.
    pub async fn del(
        &self,
        attachment: &Attachment,
        current: Option<&NetworkList>,
        deadline: Instant,
    ) -> Result<(), CniError> {
        let mut records = self.recorded(&attachment.container_id).await?;
        records.retain(|record| record.key.ifname == attachment.ifname);
        if let (true, Some(list)) = (records.is_empty(), current) {
            let record = Record::intent(list, attachment);
            let _guard = self.lock(Verb::Del, &record.key, deadline).await?;
            return self.undo(record, &attachment.netns, current, deadline).await;
        }
        self.del_records(records, &attachment.netns, current, deadline).await
    }

    /// Detaches a container from everything it was attached to, last interface first.
    ///
    /// # Errors
    /// The first plugin that failed; the record is kept.
    pub async fn del_container(
        &self,
        id: &ContainerId,
        netns: &Path,
        current: Option<&NetworkList>,
        deadline: Instant,
    ) -> Result<(), CniError> {
        let records = self.recorded(id).await?;
        self.del_records(records, netns, current, deadline).await?;
        let id = id.clone();
        self.store(move |store| store.remove_drafts(&id)).await
    }

    /// Asks the plugins whether an attachment is still as ADD made it.
    ///
    /// The configuration is the recorded one, else `current`.
    ///
    /// # Errors
    /// The first plugin that failed, a version without CHECK, or an unusable cached result.
    pub async fn check(
        &self,
        attachment: &Attachment,
        current: &NetworkList,
        deadline: Instant,
    ) -> Result<(), CniError> {
        let intent = Record::intent(current, attachment);
        let key = intent.key.clone();
        let _guard = self.lock(Verb::Check, &key, deadline).await?;
        let read = key.clone();
        let (recorded, cached) =
            self.store(move |store| Ok((store.read(&read), store.read_result(&read)))).await?;
        let record = recorded.unwrap_or(intent);
        let list = NetworkList::parse(&record.config)
            .map_err(|source| CniError::RecordedConfig { key: key.clone(), source })?;
        let unusable = |reason: String| CniError::CachedResult { key: key.clone(), reason };
        let result = match cached {
            CachedResult::Absent => None,
            CachedResult::Invalid(reason) => return Err(unusable(reason)),
            CachedResult::Present(object) => Some(
                AddResult::from_object(object, SpecVersion::V0_1_0)
                    .map_err(|error| unusable(error.to_string()))?,
            ),
        };
        let attachment = record.attachment(attachment.netns.clone());
        let plan = plan::check(&list, result.as_ref(), &attachment, &self.plugins.cni_path);
        match plan.map_err(|error| unusable(error.to_string()))? {
            CheckPlan::Unsupported => Err(CniError::CheckUnsupported(list.name)),
            CheckPlan::Disabled => Ok(()),
            CheckPlan::Run(requests) => self.run_all(&list.name, requests, deadline).await,
        }
    }

    /// Asks the plugins of a network whether ADD would work. Before 1.1.0 there is nobody to ask.
    ///
    /// # Errors
    /// The first plugin that said no: see [`crate::PluginError::unavailable`].
    pub async fn status(&self, list: &NetworkList, deadline: Instant) -> Result<(), CniError> {
        self.run_all(&list.name, plan::status(list, &self.plugins.cni_path), deadline).await
    }

    /// Asks a plugin which versions it supports.
    ///
    /// # Errors
    /// It failed, or its answer cannot be used.
    pub async fn version(&self, plugin: &PluginType, deadline: Instant) -> Result<Vec<String>, CniError> {
        let answer = match self.invoke(&plan::version(plugin), deadline).await {
            Ok(bytes) => supported_versions(&bytes).map_err(PluginFailure::BadVersion),
            Err(PluginFailure::Reported(error)) if error.means_no_version_verb() => {
                Ok(vec!["0.1.0".to_owned()])
            }
            Err(error) => Err(error),
        };
        answer.map_err(|source| CniError::Version { plugin: plugin.clone(), source })
    }

    /// Asks every plugin of a network whether it supports the network's version, and returns the capabilities that
    /// they declare.
    ///
    /// # Errors
    /// The first plugin that is missing, failed, or does not support the version.
    pub async fn validate(
        &self,
        list: &NetworkList,
        deadline: Instant,
    ) -> Result<BTreeSet<String>, CniError> {
        let mut capabilities = BTreeSet::new();
        for plugin in list.plugins() {
            let supported = self.version(&plugin.kind, deadline).await?;
            if !supported.iter().any(|version| version == list.version.as_str()) {
                return Err(CniError::VersionMismatch {
                    network: list.name.clone(),
                    plugin: plugin.kind.clone(),
                    wanted: list.version,
                    supported,
                });
            }
            capabilities.extend(plugin.capabilities.iter().cloned());
        }
        Ok(capabilities)
    }

    /// What is recorded of a container, in the order of its interfaces.
    ///
    /// # Errors
    /// The records cannot be listed.
    pub async fn recorded(&self, id: &ContainerId) -> Result<Vec<Record>, CniError> {
        let id = id.clone();
        self.store(move |store| store.of_container(&id)).await
    }

    /// The cached result of an attachment: what its ADD returned. None when ADD has not succeeded.
    ///
    /// # Errors
    /// It cannot be used.
    pub async fn result(&self, key: &Key) -> Result<Option<AddResult>, CniError> {
        let read = key.clone();
        let unusable = |reason: String| CniError::CachedResult { key: key.clone(), reason };
        match self.store(move |store| Ok(store.read_result(&read))).await? {
            CachedResult::Absent => Ok(None),
            CachedResult::Invalid(reason) => Err(unusable(reason)),
            CachedResult::Present(object) => AddResult::from_object(object, SpecVersion::V0_1_0)
                .map(Some)
                .map_err(|error| unusable(error.to_string())),
        }
    }

    async fn del_records(
        &self,
        records: Vec<Record>,
        netns: &Path,
        current: Option<&NetworkList>,
        deadline: Instant,
    ) -> Result<(), CniError> {
        for Record { key, .. } in records.into_iter().rev() {
            let _guard = self.lock(Verb::Del, &key, deadline).await?;
            // Another DEL may have come first.
            let read = key.clone();
            if let Some(record) = self.store(move |store| Ok(store.read(&read))).await? {
                self.undo(record, netns, current, deadline).await?;
            }
        }
        Ok(())
    }

    /// DEL by a record, and the record's end. The caller holds the container's lock.
    pub(crate) async fn undo(
        &self,
        record: Record,
        netns: &Path,
        current: Option<&NetworkList>,
        deadline: Instant,
    ) -> Result<(), CniError> {
        let list = match (NetworkList::parse(&record.config), current) {
            (Ok(list), _) => list,
            (Err(error), Some(current)) if current.name == record.key.network => {
                tracing::warn!(%error, network = %current.name, "recorded CNI configuration is unusable, using the current one");
                current.clone()
            }
            (Err(source), _) => return Err(CniError::RecordedConfig { key: record.key, source }),
        };
        let (read, netns) = (record.key.clone(), netns.to_owned());
        let look = move |store: &Store| {
            let netns = if netns.exists() { netns } else { PathBuf::new() };
            Ok((netns, store.read_result(&read)))
        };
        let (netns, result) = self.store(look).await?;
        let result = match result {
            CachedResult::Present(object) => AddResult::from_object(object, SpecVersion::V0_1_0).ok(),
            CachedResult::Absent | CachedResult::Invalid(_) => None,
        };
        let attachment = record.attachment(netns);
        for request in plan::del(&list, result.as_ref(), &attachment, &self.plugins.cni_path) {
            match self.run(&list.name, request, deadline).await {
                Err(error)
                    if error
                        .reported()
                        .is_some_and(|e| e.means_gone(attachment.netns.as_os_str().is_empty())) =>
                {
                    tracing::debug!(%error, "nothing left to delete");
                }
                done => drop(done?),
            }
        }
        self.store(move |store| store.remove(&record.key)).await
    }

    /// ADD of every plugin in order; returns the last result, also as JSON of the network's version.
    async fn add_all(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Instant,
    ) -> Result<(AddResult, serde_json::Map<String, serde_json::Value>), CniError> {
        let mut last = (AddResult::default(), serde_json::Map::new());
        let mut previous = None;
        for plugin in list.plugins() {
            let step = async {
                let request = plan::add(list, plugin, previous.as_ref(), attachment, &self.plugins.cni_path)
                    .map_err(PluginFailure::PreviousResult)?;
                let printed = self.invoke(&request, deadline).await?;
                let result = AddResult::parse(&printed, list.version).map_err(PluginFailure::BadResult)?;
                let value = result.to_value(list.version).map_err(PluginFailure::BadResult)?;
                Ok((result, value.as_object().cloned().unwrap_or_default()))
            };
            last = step.await.map_err(|source| CniError::Plugin {
                verb: Verb::Add,
                network: list.name.clone(),
                plugin: plugin.kind.clone(),
                source,
            })?;
            previous = Some(last.0.clone());
        }
        Ok(last)
    }

    async fn run_all(
        &self,
        network: &NetworkName,
        requests: Vec<Request>,
        deadline: Instant,
    ) -> Result<(), CniError> {
        for request in requests {
            self.run(network, request, deadline).await?;
        }
        Ok(())
    }

    pub(crate) async fn run(
        &self,
        network: &NetworkName,
        request: Request,
        deadline: Instant,
    ) -> Result<Vec<u8>, CniError> {
        let ran = self.invoke(&request, deadline).await;
        ran.map_err(|source| CniError::Plugin {
            verb: request.verb,
            network: network.clone(),
            plugin: request.plugin,
            source,
        })
    }

    async fn lock(
        &self,
        verb: Verb,
        key: &Key,
        deadline: Instant,
    ) -> Result<crate::locks::ContainerGuard, CniError> {
        let lock = self.inner.locks.container(&key.network, &key.container_id);
        within(deadline, lock)
            .await
            .ok_or_else(|| CniError::busy(verb, Some(&key.container_id), &key.network))
    }

    /// The disk is not touched on the threads that run the agent's tasks.
    pub(crate) async fn store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, CniError> {
        let store = self.inner.store.clone();
        let done = self.inner.disk.run(Instant::now() + RECORDS_WITHIN, move || work(&store)).await;
        let failed =
            |source| StoreError::Io { action: "use", path: self.inner.store.dir().to_owned(), source };
        Ok(done.map_err(failed)??)
    }

    async fn invoke(&self, request: &Request, deadline: Instant) -> Result<Vec<u8>, PluginFailure> {
        let Inner { disk, go_on, .. } = &*self.inner;
        invoke::run(request, Programs { bin_dirs: &self.plugins.bin_dirs, disk, go_on }, deadline).await
    }
}

pub(crate) async fn within<T>(deadline: Instant, waiting: impl Future<Output = T>) -> Option<T> {
    timeout_at(deadline, waiting).await.ok()
}

/// The answer to VERSION. (pkg/version/plugin.go `Decode`.)
fn supported_versions(bytes: &[u8]) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer {
        #[serde(default)]
        cni_version: String,
        #[serde(default)]
        supported_versions: Vec<String>,
    }
    let answer: Answer = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match (answer.cni_version.as_str(), answer.supported_versions) {
        ("", _) => Err("cniVersion is missing".into()),
        ("0.2.0", none) if none.is_empty() => Ok(vec!["0.1.0".into(), "0.2.0".into()]),
        (_, none) if none.is_empty() => Err("supportedVersions is missing".into()),
        (_, supported) => Ok(supported),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_version() {
        let table: [(&str, Result<&[&str], &str>); 5] = [
            (r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}"#, Ok(&["0.4.0", "1.0.0"])),
            (r#"{"cniVersion":"0.2.0"}"#, Ok(&["0.1.0", "0.2.0"])),
            (r#"{"cniVersion":"0.3.0"}"#, Err("supportedVersions is missing")),
            (r#"{"supportedVersions":["1.0.0"]}"#, Err("cniVersion is missing")),
            ("text", Err("expected ident at line 1 column 2")),
        ];
        for (bytes, expected) in table {
            let expected =
                expected.map(|list| list.iter().map(|v| (*v).to_owned()).collect()).map_err(str::to_owned);
            assert_eq!(supported_versions(bytes.as_bytes()), expected, "{bytes}");
        }
    }

    #[test]
    fn directories_must_fit() {
        let with = |bin: &[&str], cache: &str, records: &str| {
            let bin_dirs = bin.iter().map(PathBuf::from).collect();
            Runtime::new(RuntimeConfig { bin_dirs, cache_dir: cache.into(), records_dir: records.into() })
                .map(drop)
        };
        assert_eq!(with(&["/a", "/b"], "/c", "/d"), Ok(()));
        assert_eq!(with(&[], "/c", "/d"), Err(SetupError::NowhereToSearch));
        assert_eq!(with(&["/a", "b"], "/c", "/d"), Err(SetupError::UnfitBinDir("b".into())));
        assert_eq!(with(&["/a:b"], "/c", "/d"), Err(SetupError::UnfitBinDir("/a:b".into())));
        assert_eq!(with(&["/a"], "c", "/d"), Err(SetupError::RelativeCache("c".into())));
        assert_eq!(with(&["/a"], "/c", "d"), Err(SetupError::RelativeRecords("d".into())));
    }
}
