//! What the pod's namespaces make of a member's OCI spec.

use berth_shim_core::namespace::{Entry, IdMap, IdRange, NamespaceType, Owner, UserMaps};
use serde_json::{Value, json};

use super::error::PodError;
use super::life::Pod;
use super::shm::{self, shm_path};

impl Pod {
    /// Leads the namespaces that a member shares to the pod's own, and its /dev/shm with them.
    pub(crate) fn adopt(&mut self, config: &mut Value) -> Result<(), PodError> {
        let mut shares_ipc = false;
        self.name_network(config);
        let namespaces = config.pointer_mut("/linux/namespaces").and_then(Value::as_array_mut);
        let mut joins_user = false;
        for entry in namespaces.into_iter().flatten() {
            let Some(kind) = entry.get("type").and_then(Value::as_str).and_then(NamespaceType::of) else {
                continue;
            };
            let path = entry.get("path").and_then(Value::as_str).unwrap_or_default();
            let wish = if path.is_empty() { Entry::New } else { Entry::Path };
            if self.namespaces().owner(kind, wish) == Owner::AsWritten {
                continue;
            }
            entry["path"] = json!(self.path_of(kind)?);
            shares_ipc |= kind == NamespaceType::Ipc;
            joins_user |= kind == NamespaceType::User;
        }
        if joins_user && let Some(maps) = self.namespaces().user() {
            leave_maps_out(config, maps)?;
        }
        if shares_ipc && self.shm {
            self.share_shm(config)?;
        }
        Ok(())
    }

    /// Writes an entry for the pod's network into a spec that has none.
    fn name_network(&self, config: &mut Value) {
        let of_network = |entry: &Value| entry.get("type").and_then(Value::as_str) == Some("network");
        let entries = config.pointer("/linux/namespaces").and_then(Value::as_array);
        let is_named = entries.is_some_and(|entries| entries.iter().any(of_network));
        if is_named || self.namespaces().owner(NamespaceType::Network, Entry::None) == Owner::AsWritten {
            return;
        }
        let entry = json!({ "type": "network", "path": format!("/proc/{}/ns/net", std::process::id()) });
        let linux = config.as_object_mut().map(|config| config.entry("linux").or_insert_with(|| json!({})));
        let list = linux.and_then(Value::as_object_mut).map(|linux| linux.entry("namespaces"));
        // Whatever else stands there is no list, which the runtime is to say.
        if let Some(entries) =
            list.map(|list| list.or_insert_with(|| json!([]))).and_then(Value::as_array_mut)
        {
            entries.push(entry);
        }
    }

    /// Where the pod's namespace is found while the pod lives.
    fn path_of(&mut self, kind: NamespaceType) -> Result<String, PodError> {
        let pid = match (kind, &self.user) {
            (NamespaceType::User, Some(user)) => return Ok(user.path()),
            (NamespaceType::Pid, _) => self.pid1()?,
            (NamespaceType::Network | NamespaceType::Ipc | NamespaceType::Uts | NamespaceType::User, _) => {
                std::process::id()
            }
        };
        Ok(format!("/proc/{pid}/ns/{}", kind.file()))
    }

    /// What a client binds there itself stays, as a volume of a pod that is mounted there. Programs may map memory of it for execution, as in a pod of containerd's CRI. In a user namespace of the pod the kernel lets nobody take
    /// away what it is mounted with.
    fn share_shm(&self, config: &mut Value) -> Result<(), PodError> {
        let label =
            config.pointer("/linux/mountLabel").and_then(Value::as_str).unwrap_or_default().to_owned();
        let options: &[&str] = match self.user {
            Some(_) => &["rbind", "rw", "nosuid", "nodev", "noexec"],
            None => &["rbind", "rprivate", "rw"],
        };
        let mounts = config.get_mut("mounts").and_then(Value::as_array_mut);
        for entry in mounts.into_iter().flatten() {
            let is = |key: &str, value: &str| entry.get(key).and_then(Value::as_str) == Some(value);
            if is("destination", "/dev/shm") && is("type", "tmpfs") {
                *entry = json!({
                    "destination": "/dev/shm",
                    "type": "bind",
                    "source": shm_path(&self.bundle),
                    "options": options,
                });
                shm::label(&self.bundle, &label)?;
            }
        }
        Ok(())
    }
}

/// Takes maps out of a spec that joins a user namespace, which has its own. Clients write both, since containerd gives a
/// bundle to the mapped root by them; runc takes both while they are in the same order, and says that it will not.
fn leave_maps_out(config: &mut Value, maps: &UserMaps) -> Result<(), PodError> {
    let Some(linux) = config.get_mut("linux").and_then(Value::as_object_mut) else { return Ok(()) };
    for (list, pods) in [("uidMappings", &maps.uids), ("gidMappings", &maps.gids)] {
        let Some(value) = linux.remove(list).filter(|value| !value.is_null()) else { continue };
        let ranges =
            value.as_array().and_then(|entries| entries.iter().map(range).collect::<Option<Vec<_>>>());
        let ranges = ranges.ok_or(PodError::MemberMaps { list })?;
        if IdMap::new(ranges).as_ref() != Ok(pods) {
            return Err(PodError::MemberOtherMaps { list });
        }
    }
    Ok(())
}

fn range(entry: &Value) -> Option<IdRange> {
    let number = |name: &str| u32::try_from(entry.get(name)?.as_u64()?).ok();
    Some(IdRange { inside: number("containerID")?, outside: number("hostID")?, count: number("size")? })
}
