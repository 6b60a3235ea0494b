//! What the options of a sandbox ask for, parsed.

use berth_proto::shim::{IdMapping, NamespaceMode, SandboxOptions};
use berth_shim_core::namespace::{IdRange, Mode, Namespaces, Sysctl, UserMaps, shm_bytes};

use super::error::PodError;

/// The wishes of a sandbox that concern its namespaces.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) namespaces: Namespaces,
    /// PID 1 is wanted at once, not with the first member that shares processes.
    pub(super) pid1: bool,
    pub(super) hostname: String,
    pub(super) shm_bytes: u64,
    /// Sysctls and their values.
    pub(super) sysctls: Vec<(Sysctl, String)>,
}

impl Asked {
    /// Without options, namespaces are the pod's wherever a member asks to share one.
    pub(super) fn of(options: Option<&SandboxOptions>, netns_path: &str) -> Result<Self, PodError> {
        let network = if netns_path.is_empty() { Mode::Node } else { Mode::Pod };
        let Some(options) = options else {
            let namespaces = Namespaces::new(network, Mode::Pod, Mode::Pod, Mode::Pod, None)?;
            let shm_bytes = shm_bytes(0)?;
            let (hostname, sysctls) = (String::new(), Vec::new());
            return Ok(Self { namespaces, pid1: false, hostname, shm_bytes, sysctls });
        };
        let (ipc, uts, pid) = (mode(options.ipc)?, mode(options.uts)?, mode(options.pid)?);
        let user = UserMaps::new(ranges(&options.uid_mappings), ranges(&options.gid_mappings))?;
        let namespaces = Namespaces::new(network, ipc, uts, pid, user)?;
        let sysctl = |(name, value): (&String, &String)| Ok((namespaces.sysctl(name)?, value.clone()));
        let sysctls = options.sysctls.iter().map(sysctl).collect::<Result<_, PodError>>()?;
        Ok(Self {
            namespaces,
            pid1: pid == Mode::Pod,
            hostname: options.hostname.clone(),
            shm_bytes: shm_bytes(options.shm_size)?,
            sysctls,
        })
    }
}

fn mode(number: i32) -> Result<Mode, PodError> {
    match NamespaceMode::try_from(number) {
        Ok(NamespaceMode::Container) => Ok(Mode::Container),
        Ok(NamespaceMode::Pod) => Ok(Mode::Pod),
        Ok(NamespaceMode::Node) => Ok(Mode::Node),
        Err(_unknown) => Err(PodError::Mode(number)),
    }
}

fn ranges(mappings: &[IdMapping]) -> Vec<IdRange> {
    let range = |map: &IdMapping| IdRange { inside: map.container_id, outside: map.host_id, count: map.size };
    mappings.iter().map(range).collect()
}
