//! Handlers of sandboxes: what a pod began under it stays under, whatever its handler's name stands for by now.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::{
    failure::{Failure, FailureKind},
    id::SandboxId,
    spec::{Pod, Source},
};

use crate::{
    config::Handler,
    effects::{
        failure::{config, failed},
        host::Host,
    },
};

/// Handlers by sandbox. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SandboxHandlers(Arc<Mutex<BTreeMap<SandboxId, Arc<Handler>>>>);

impl SandboxHandlers {
    /// Keeps that of a sandbox which is there.
    pub fn keep(&self, sandbox: &SandboxId, handler: Arc<Handler>) {
        self.table().insert(sandbox.clone(), handler);
    }

    /// That of a sandbox.
    pub(crate) fn get(&self, sandbox: &SandboxId) -> Option<Arc<Handler>> {
        self.table().get(sandbox).cloned()
    }

    pub(super) fn forget(&self, sandbox: &SandboxId) {
        self.table().remove(sandbox);
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Arc<Handler>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That of the pod's sandbox, or the one that the pod names where no sandbox tells.
pub(super) async fn of_sandbox(host: &Host, pod: &Pod, sandbox: &SandboxId) -> Result<Arc<Handler>, Failure> {
    match host.handlers.get(sandbox) {
        Some(handler) => Ok(handler),
        None => named_by(host, pod).await,
    }
}

/// What the pod names, as it is configured now.
pub(super) async fn named_by(host: &Host, pod: &Pod) -> Result<Arc<Handler>, Failure> {
    let name = match (&pod.runtime, pod.source) {
        (None, _) => String::new(),
        // Without API server there are no classes: a manifest names the handler itself.
        (Some(handler), Source::File | Source::Http) => handler.clone(),
        (Some(class), Source::Api) => {
            let handler = host.objects.handler(&pod.uid, class).await;
            handler.map_err(|error| failed(FailureKind::Transient, &error))?
        }
    };
    host.settings().handlers.get(&name).cloned().map(Arc::new).ok_or_else(|| {
        config(format!(
            "run the pod with runtime handler {name:?}: this node has none of that name; name it in runtime.handlers of \
             BerthConfiguration, or in containerd's configuration"
        ))
    })
}
