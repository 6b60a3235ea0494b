//! The pod's user namespace (KEP-127). The shim never enters it, since it must keep its rights over the node; it holds a
//! descriptor, and has children do what must be done inside.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use berth_shim_core::namespace::{IdMap, UserMaps};
use nix::sched::{CloneFlags, setns, unshare};

use super::error::PodError;
use super::network::Netns;
use crate::sys;

#[derive(Debug)]
pub(crate) struct UserNamespace(OwnedFd);

impl UserNamespace {
    /// The pod's user namespace: the owner of the network namespace that it was given, else a new one.
    ///
    /// Only who owns a network namespace may mount `/sys` for it and set its sysctls.
    pub(super) fn of_pod(maps: &UserMaps, netns: Option<&Netns>) -> Result<Self, PodError> {
        let namespace = match netns {
            Some(netns) => Self::owner(netns)?,
            None => {
                sys::user_namespace(&maps.uids.lines(), &maps.gids.lines()).map_err(PodError::MakeUser)?
            }
        };
        let namespace = Self(namespace);
        let read = |pid: u32| {
            let map = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
            Ok((map("uid_map")?, map("gid_map")?))
        };
        let (uids, gids) = namespace.visit(CloneFlags::empty(), read).map_err(PodError::LookUser)?;
        for (asked, found) in [(&maps.uids, uids), (&maps.gids, gids)] {
            if IdMap::parse(&found).as_ref() != Ok(asked) {
                return Err(PodError::OtherMaps { asked: asked.lines(), found });
            }
        }
        Ok(namespace)
    }

    fn owner(netns: &Netns) -> Result<OwnedFd, PodError> {
        let path = || netns.path.clone();
        let owner = sys::owner_of(netns.as_fd()).map_err(|error| match error.kind() {
            // What is not a namespace takes no such request.
            io::ErrorKind::InvalidInput => PodError::NoNetns { path: path() },
            _ if error.raw_os_error() == Some(nix::libc::ENOTTY) => PodError::NoNetns { path: path() },
            _ => PodError::EnterNetns { path: path(), source: error },
        })?;
        let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        let owner = File::from(owner);
        let own =
            File::open("/proc/self/ns/user").and_then(|own| identity(&own)).map_err(PodError::LookUser)?;
        if identity(&owner).map_err(PodError::LookUser)? == own {
            return Err(PodError::NodesNetns { path: path() });
        }
        Ok(owner.into())
    }

    /// The path by which others join it.
    ///
    /// With a dot in it: runc 1.5 takes every path that begins with `/proc/<pid>/` for `/proc/<pid>/ns/user`, and would
    /// read that process's maps, the node's, for those of the namespace (`GetUserNamespaceMappings`).
    pub(super) fn path(&self) -> String {
        format!("/proc/./{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Shows a process that is inside, and in further new namespaces owned by this one.
    pub(super) fn visit<T>(
        &self,
        flags: CloneFlags,
        look: impl FnOnce(u32) -> io::Result<T>,
    ) -> io::Result<T> {
        let enter = || setns(self.0.as_fd(), CloneFlags::CLONE_NEWUSER).and_then(|()| unshare(flags));
        look(sys::stand_in(enter)?.id())
    }

    /// Does something as the pod's root.
    pub(super) fn as_root(&self, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let child = sys::fork(|| {
            let done = self.enter().and_then(|()| sys::become_root()).and_then(|()| act());
            done.err().map_or(0, |error| error.raw_os_error().unwrap_or(nix::libc::EIO))
        })?;
        match child.wait()? {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    /// Has the calling process, a child, enter.
    pub(super) fn enter(&self) -> io::Result<()> {
        Ok(setns(self.0.as_fd(), CloneFlags::CLONE_NEWUSER)?)
    }
}
