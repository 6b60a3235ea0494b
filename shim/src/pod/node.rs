//! The way back from the pod's namespaces to the node's.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::sync::Arc;

use berth_shim_core::namespace::{NamespaceType, Namespaces};
use nix::sched::{CloneFlags, setns};

use crate::sys;

/// Namespaces that the shim was in before it entered the pod's. Copies are the same.
#[derive(Debug, Clone)]
pub(crate) struct Node(Arc<Vec<(File, CloneFlags)>>);

impl Node {
    /// Those that the shim is in and is about to leave.
    pub(super) fn of_self(pod: &Namespaces) -> io::Result<Self> {
        let left = [
            (NamespaceType::Network, CloneFlags::CLONE_NEWNET),
            (NamespaceType::Ipc, CloneFlags::CLONE_NEWIPC),
            (NamespaceType::Uts, CloneFlags::CLONE_NEWUTS),
        ];
        let left = left.into_iter().filter(|(kind, _)| pod.is_pods(*kind));
        let open = |(kind, flag): (NamespaceType, CloneFlags)| {
            Ok((File::open(format!("/proc/self/ns/{}", kind.file()))?, flag))
        };
        left.map(open).collect::<io::Result<_>>().map(|left| Self(Arc::new(left)))
    }

    /// Has a command enter them before it becomes another program.
    pub(super) fn before_exec(&self, command: &mut Command) {
        if self.0.is_empty() {
            return;
        }
        let node = self.clone();
        sys::before_exec(command, move || node.enter());
    }

    /// Has the calling thread go back.
    pub(crate) fn enter(&self) -> io::Result<()> {
        for (file, flag) in self.0.iter() {
            let namespace: BorrowedFd<'_> = file.as_fd();
            setns(namespace, *flag)?;
        }
        Ok(())
    }
}
